"""Federated k-means, on pixels or on the features of a finished encoder; clients share centroids and counts only.

Before the first round every reachable client clusters its own samples and sends centroids and counts, which the server
clusters into the first global centroids, as in Dennis et al., "Heterogeneity for the Win: One-Shot Federated Clustering"
(ICML 2021). Then each round is a step of Lloyd's k-means: clients send the sum and the number of their samples in every
cluster. With one client it is k-means; with model.pretrained it is the "FedU + K-means" of Miao & Koyuncu without
gathering features at the server.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from unisono.clustering.federated_kmeans import (
    cluster_totals,
    merge_clusters,
    next_centroids,
    own_clusters,
)
from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import Method, Phase, register
from unisono.core.payload import Aggregate, Form, Payload, Reduce, Reveals, Share, Tensors, Update
from unisono.methods.cluster_heads import wanted_clusters
from unisono.models.backbones import ModelConfig, make_backbone
from unisono.models.nets import build_seeded, get_state, load_state
from unisono.models.pretrained import load_pretrained

SEED, ASSIGN = "seed", "assign"
BATCH = 512


class FederatedKMeansConfig(Section):
    """Options of federated k-means."""

    num_clusters: int | None = Field(None, ge=2, description="number of clusters; unset: as many as the data has classes")
    features: Literal["pixels", "encoder"] = Field("pixels", description="what is clustered; encoder: that of model.pretrained")
    min_cluster_size: int = Field(2, ge=1, description="a client counts smaller clusters with the nearest larger one")


@register("federated-kmeans")
class FederatedKMeans(Method[FederatedKMeansConfig]):
    """K-means whose clients share centroids and counts; on pixels, or on the features of a finished encoder."""

    Config = FederatedKMeansConfig
    phase_names = (SEED, ASSIGN)
    single_phases = (SEED,)

    def setup(self) -> None:
        self.model = self.info.section(ModelConfig)
        self.num_clusters = wanted_clusters(self.config.num_clusters, self.info)
        if self.config.features == "encoder" and self.model.pretrained is None:
            raise UserError('method.features = "encoder" needs a finished encoder: name one in model.pretrained.')

    @property
    def shares(self) -> Mapping[str, Share]:
        number, held = self.num_clusters, "centroids/centroids"
        seeds = {"centroids": Form(("seeds", self._width), number), "counts": Form(("seeds",), number, 1.0)}
        totals = {"sums": Form((held, self._width)), "counts": Form((held,), low=0.0, high=1.0)}
        return {
            "seeds": Share(Reduce.STACK, Reveals.STATISTICS, seeds),
            "totals": Share(Reduce.MEAN, Reveals.STATISTICS, totals),
        }

    @cached_property
    def _width(self) -> int:
        """Number of features."""
        if self.config.features == "pixels":
            return math.prod(self.info.input_shape)
        return int(self.build_networks()["encoder"].feature_dim)  # type: ignore[arg-type]

    def build_networks(self) -> nn.ModuleDict:
        if self.config.features == "pixels":
            return nn.ModuleDict({"encoder": nn.Flatten()})
        info = self.info
        return nn.ModuleDict({"encoder": make_backbone(self.model, info.input_shape, info.mean, info.std)})

    def phases(self, round: int, server: Payload) -> Sequence[Phase]:
        return (Phase(ASSIGN),) if "centroids" in server.groups else (Phase(SEED, all_clients=True), Phase(ASSIGN))

    def groups_sent(self, ctx: Context) -> Collection[str]:
        return ("seeds",) if ctx.phase == SEED else ("totals",)

    def init_server(self, ctx: Context) -> Payload:
        encoder = build_seeded(self.build_networks, ctx.rng("weights").initial_seed())["encoder"]
        if self.config.features == "encoder" and self.model.pretrained is not None:
            load_pretrained(encoder, self.model.pretrained)
        return Payload({"encoder": get_state(encoder)})

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        names = ("encoder",) if ctx.phase == SEED else ("encoder", "centroids")
        return Payload({name: server.groups[name] for name in names if name in server.groups})

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        load_state(nets["encoder"], received.groups["encoder"])
        points = _features(nets["encoder"].eval(), data)
        if ctx.phase == SEED:
            return Update(ctx.client_id, float(len(data)), self._seeds(points, ctx)), local
        if "centroids" not in received.groups:
            return Update(ctx.client_id, float(len(data)), Payload()), local
        centroids = received.groups["centroids"]["centroids"]
        shown = cluster_totals(points, centroids, self.config.min_cluster_size)
        if shown is None:  # zeros change no mean, and a masked sum needs something of every client
            empty = {"sums": torch.zeros_like(centroids), "counts": torch.zeros(len(centroids))}
            return Update(ctx.client_id, float(len(data)), Payload({"totals": empty})), local
        # Shares of the client's samples: their mean with weights by samples is the total over all clients' samples.
        sent = Payload({"totals": {"sums": shown.sums / len(data), "counts": shown.counts / len(data)}})
        metrics = {"loss": shown.squared_distance / len(data)}
        return Update(ctx.client_id, float(len(data)), sent, metrics), local

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        if ctx.phase == SEED:
            seeds = [tensors for _, tensors in aggregate.stacks.get("seeds", [])]
            return server.with_groups(centroids={"centroids": self._merge(seeds, ctx)}) if seeds else server
        if "totals" not in aggregate.means:
            return server
        totals, previous = aggregate.means["totals"], server.groups["centroids"]["centroids"]
        centroids = next_centroids(totals["sums"], totals["counts"], previous)
        moved = float((centroids - previous).norm(dim=1).max())
        server = server.with_groups(centroids={"centroids": centroids}).with_scalars(moved=moved)
        loss = aggregate.metrics.get("loss")  # nobody may have told one
        return server if loss is None else server.with_scalars(variance=loss / centroids.shape[1])

    def server_metrics(self, server: Payload) -> Mapping[str, float]:
        return {"moved": float(server.scalars["moved"])} if "moved" in server.scalars else {}

    def round_notes(self, before: Payload, after: Payload) -> Sequence[str]:
        if "centroids" in before.groups or "centroids" not in after.groups:
            return ()
        found = len(after.groups["centroids"]["centroids"])
        if found == self.num_clusters:
            return ()
        return [f"clients could show only {found} clusters of the {self.num_clusters} asked for, and so there are {found}."]

    def encoder(self, server: Payload) -> nn.Module:
        encoder = self.build_networks()["encoder"]
        load_state(encoder, server.groups["encoder"])
        return encoder.eval()

    def cluster_model(self, server: Payload) -> nn.Module | None:
        if "variance" not in server.scalars:
            return None
        centroids, variance = server.groups["centroids"]["centroids"], float(server.scalars["variance"])
        return NearestMean(self.encoder(server), centroids, variance).eval()

    def _seeds(self, points: Tensor, ctx: Context) -> Payload:
        """Return the client's own centroids and counts; of clusters of at least ``min_cluster_size`` samples."""
        found = own_clusters(points, self.num_clusters, self.config.min_cluster_size, ctx.rng("seeds"))
        if found is None:
            return Payload()
        return Payload({"seeds": {"centroids": found.sums / found.counts[:, None], "counts": found.counts}})

    def _merge(self, seeds: Sequence[Tensors], ctx: Context) -> Tensor:
        """Return the first global centroids: clusters of those of all clients, each the mean of the samples behind it."""
        centroids = torch.cat([tensors["centroids"] for tensors in seeds])
        counts = torch.cat([tensors["counts"] for tensors in seeds])
        return merge_clusters(centroids, counts, self.num_clusters, ctx.rng("seeds"))


class NearestMean(nn.Module):
    """Samples to cluster scores: log-likelihoods, up to a constant, under equal round Gaussians at the centroids."""

    centroids: Tensor

    def __init__(self, encoder: nn.Module, centroids: Tensor, variance: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("centroids", centroids)
        self.variance = max(variance, torch.finfo(torch.float32).eps)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores, shape (batch, num_clusters)."""
        return -torch.cdist(self.encoder(x), self.centroids).square() / (2 * self.variance)


def _features(encoder: nn.Module, data: ClientData) -> Tensor:
    """Return features of all of a client's samples, on the CPU, shape (len(data), feature_dim)."""
    with torch.no_grad():
        parts = [encoder(data.batch(positions)).float().cpu() for positions in torch.arange(len(data)).split(BATCH)]
    return torch.cat(parts)
