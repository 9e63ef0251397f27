"""Options, heads, losses and the collapse warning of methods with an instance head and a cluster head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import TypeVar

from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import RunInfo
from unisono.core.payload import Aggregate, Payload
from unisono.losses.clustering import Contrast, assignment_entropy, cluster_contrast, instance_contrast
from unisono.methods.local_training import LocalTraining
from unisono.models.heads import mlp
from unisono.models.nets import load_state

ENTROPY = "assignment_entropy"
"""Metric: entropy of the mean assignment over its maximum, log num_clusters; near 0 one cluster takes all."""
Pairs = Sequence[tuple[Tensor, Tensor]]
"""First and second views of a batch, as one network or two see them."""


class ClusterHeadsConfig(Section):
    """Options of methods with an instance head and a cluster head; the defaults are those of Miao & Koyuncu."""

    num_clusters: int | None = Field(None, ge=2, description="number of clusters; unset: as many as the data has classes")
    instance_dim: int = Field(128, ge=1, description="width of the instance head's output")
    instance_temperature: float = Field(0.5, gt=0, description="tau_I, divides the similarities of samples")
    cluster_temperature: float = Field(1.0, gt=0, description="tau_C, divides the similarities of clusters")
    contrast: Contrast = Field("ntxent", description="ntxent: the standard loss; paper: Eq. 1 as it is printed")
    entropy_weight: float = Field(1.0, ge=0, description="weight of the entropy of the mean assignment, which is maximised")
    collapse_threshold: float = Field(
        0.5, ge=0, le=1, description="the run says so when that entropy, over its maximum, falls below this"
    )


def wanted_clusters(num_clusters: int | None, info: RunInfo) -> int:
    """Return the number that the config asks for, or that of the data's classes; raise a UserError where there is neither."""
    found = info.num_classes if num_clusters is None else num_clusters
    if found is None or found < 2:
        raise UserError("method.num_clusters is required, because the data has no labels to tell how many classes there are.")
    return found


def head_at_centroids(centroids: Tensor, counts: Tensor, squared_distance: float) -> dict[str, Tensor]:
    """Return the state of a cluster head whose scores are largest for the nearest centroid.

    The first layer adds a constant that keeps features within four standard deviations of their mean above the ReLU's kink,
    so the head is linear there, and the scores are those of round Gaussians, -|h - c|^2 / (2 s), up to a constant. With s the
    variance of a coordinate they would be nearly hard, for coordinates are far from independent; s is sqrt(dim) times that.

    Args:
        centroids: shape (num_clusters, dim).
        counts: the samples behind each, shape (num_clusters,).
        squared_distance: mean squared distance of a sample to its centroid.
    """
    dim = centroids.shape[1]
    shares = (counts / counts.sum())[:, None]
    mean = (shares * centroids).sum(dim=0)
    variance = (shares * (centroids - mean).square()).sum(dim=0) + squared_distance / dim
    shift = 4 * variance.sqrt() - mean
    scale = max(squared_distance / dim**0.5, torch.finfo(torch.float32).eps)
    return {
        "0.weight": torch.eye(dim),
        "0.bias": shift,
        "2.weight": centroids / scale,
        "2.bias": -(centroids.square().sum(dim=1) / 2 + centroids @ shift) / scale,
    }


def instance_loss(pairs: Pairs, config: ClusterHeadsConfig) -> Tensor:
    """Return the mean over pairs of the contrast of samples; a scalar.

    Args:
        pairs: projections, each of shape (batch, instance_dim).
        config: temperature and formula.
    """
    losses = [instance_contrast(z_a, z_b, config.instance_temperature, config.contrast) for z_a, z_b in pairs]
    return torch.stack(losses).mean()


def cluster_loss(pairs: Pairs, config: ClusterHeadsConfig) -> Tensor:
    """Return the mean over pairs of the contrast of clusters; a scalar.

    Args:
        pairs: soft assignments, each of shape (batch, num_clusters).
        config: temperature and formula.
    """
    losses = [cluster_contrast(c_a, c_b, config.cluster_temperature, config.contrast) for c_a, c_b in pairs]
    return torch.stack(losses).mean()


def entropies(c_a: Tensor, c_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed entropies of two mean assignments, and their mean over the maximum, log num_clusters; scalars.

    Args:
        c_a: soft assignments of the first views, shape (batch, num_clusters).
        c_b: soft assignments of the second views, same shape.
    """
    total = assignment_entropy(c_a) + assignment_entropy(c_b)
    return total, total / (2 * math.log(c_a.shape[1]))


H = TypeVar("H", bound=ClusterHeadsConfig, default=Any)


class ClusterHeads(LocalTraining[H]):
    """Template: an encoder with an instance head and a cluster head, whose scores are the clusters.

    The server remembers the entropy of the mean assignment, and the run says so when it falls below the threshold.
    """

    defaults = {
        "training": {"optimizer": "adam", "learning_rate": 3e-4, "weight_decay": 0.0, "batch_size": 128},
        "views": {"preset": "fedmcc"},
    }
    min_batch_size = 2
    projector_network = "instance_head"

    def setup(self) -> None:
        super().setup()
        self.num_clusters = wanted_clusters(self.config.num_clusters, self.info)

    def build_networks(self) -> nn.ModuleDict:
        encoder = self.backbone()
        width = encoder.feature_dim
        return nn.ModuleDict(
            {
                "encoder": encoder,
                "instance_head": mlp([width, width, self.config.instance_dim], norm=None),
                "cluster_head": mlp([width, width, self.num_clusters], norm=None),  # its softmax is part of the loss
            }
        )

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        server = super().server_step(server, aggregate, ctx)
        return server.with_scalars(**{ENTROPY: aggregate.metrics[ENTROPY]}) if ENTROPY in aggregate.metrics else server

    def round_notes(self, before: Payload, after: Payload) -> Sequence[str]:
        entropy, previous = (float(server.scalars.get(ENTROPY, 1.0)) for server in (after, before))
        threshold = self.config.collapse_threshold
        if not entropy < threshold <= previous:
            return ()
        return (
            f"the clusters are collapsing: the entropy of the mean assignment fell to {entropy:.2f} of its maximum, below "
            f"method.collapse_threshold = {threshold:g}; raise method.entropy_weight or lower training.learning_rate.",
        )

    def cluster_model(self, server: Payload) -> nn.Module | None:
        nets = self.build_networks()
        for name in ("encoder", "cluster_head"):
            load_state(nets[name], server.groups[name])
        return nn.Sequential(nets["encoder"], nets["cluster_head"]).eval()
