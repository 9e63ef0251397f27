"""Contrastive clustering, centralised with one client and federated ("Fed + CC") with many.

Li et al., "Contrastive Clustering" (AAAI 2021), as section II-A of Miao & Koyuncu, "Federated Momentum Contrastive
Clustering". The entropy of the mean assignment is maximised; the plus sign before it in the latter's Eq. 2 is a slip.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from unisono.core.context import Context
from unisono.core.method import register
from unisono.core.payload import Aggregate, Payload
from unisono.methods.cluster_heads import (
    ENTROPY,
    ClusterHeadsConfig,
    cluster_loss,
    collapse_notes,
    entropies,
    instance_loss,
    make_heads,
    remember_entropy,
    wanted_clusters,
)
from unisono.methods.local_training import Batch, LocalTraining, LossTerms
from unisono.models.nets import load_state


class CCConfig(ClusterHeadsConfig):
    """Options of contrastive clustering."""


@register("cc")
class CC(LocalTraining[CCConfig]):
    """Contrastive clustering: views of a sample share its projection, views of a batch share its clusters."""

    Config = CCConfig
    defaults = {
        "training": {"optimizer": "adam", "learning_rate": 3e-4, "weight_decay": 0.0, "batch_size": 128},
        "views": {"preset": "fedmcc"},
    }
    shared_networks = ("encoder", "instance_head", "cluster_head")
    min_batch_size = 2

    def setup(self) -> None:
        super().setup()
        self.num_clusters = wanted_clusters(self.config.num_clusters, self.info)

    def build_networks(self) -> nn.ModuleDict:
        encoder = self.backbone()
        return nn.ModuleDict({"encoder": encoder, **make_heads(encoder.feature_dim, self.config, self.num_clusters)})

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        h = nets["encoder"](torch.cat(self.views.pair(batch.x, generator)))
        z_a, z_b = nets["instance_head"](h).chunk(2)
        c_a, c_b = nets["cluster_head"](h).softmax(dim=1).chunk(2)
        instance, cluster = instance_loss([(z_a, z_b)], self.config), cluster_loss([(c_a, c_b)], self.config)
        entropy, share = entropies(c_a, c_b)
        # The mean of ntxent over its anchors on both sides is half of the sides' sum; Eq. 2 halves its only side.
        half = 0.5 if self.config.contrast == "paper" else 1.0
        return {
            "loss": half * (instance + cluster) - self.config.entropy_weight * entropy,
            "instance_loss": instance,
            "cluster_loss": cluster,
            ENTROPY: share,
        }

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        return remember_entropy(super().server_step(server, aggregate, ctx), aggregate.metrics)

    def round_notes(self, before: Payload, after: Payload) -> Sequence[str]:
        return collapse_notes(before, after, self.config.collapse_threshold)

    def cluster_model(self, server: Payload) -> nn.Module:
        nets = self.build_networks()
        for name in ("encoder", "cluster_head"):
            load_state(nets[name], server.groups[name])
        return nn.Sequential(nets["encoder"], nets["cluster_head"]).eval()
