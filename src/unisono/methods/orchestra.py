"""Orchestra: globally consistent clustering of data that stays on its clients.

Lubana et al., "Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering" (ICML 2022).
Clients cluster the representations of their own samples into clusters of equal size and send the centroids; the server clusters
these into global centroids; clients learn to give a sample and its views the same global cluster, and to predict rotations,
which keeps the clusters from collapsing. The minus signs of the paper's Algorithm 1 are slips: cross-entropies are minimised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from unisono.clustering.equal_size import equal_size_clustering, mixing
from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import Phase, Setting, register
from unisono.core.payload import Aggregate, Payload, Reduce, Reveals, Share, Tensors, Update
from unisono.data.views import rotate_quarter_turns
from unisono.methods.local_training import Batch, LocalTraining, Terms
from unisono.models.heads import mlp
from unisono.models.nets import freeze, load_state, update_ema


class OrchestraConfig(Section):
    """Options of Orchestra; the defaults are the paper's cross-device setting for CIFAR-10."""

    num_global_clusters: int = Field(64, ge=1, description="G, clusters at the server")
    num_local_clusters: int = Field(8, ge=1, description="L, clusters at a client")
    min_cluster_size: int = Field(2, ge=2, description="k of k-anonymity: no centroid stands for fewer samples")
    memory_size: int = Field(128, ge=2, description="most recent target representations that a client clusters")
    temperature: float = Field(0.1, gt=0, description="T of the cluster assignments")
    ema: float = Field(0.996, ge=0, le=1, description="momentum of the target networks; 0 is the ablation without a target")
    degeneracy_weight: float = Field(1.0, ge=0, description="weight of the rotation loss; 0 is the ablation without it")
    target_view: Literal["plain", "augmented"] = Field("plain", description="what the target sees: the sample, or a view")
    aggregate_target: bool = Field(True, description="average the targets too; false restarts them from the online networks")
    evaluate: Literal["target", "online"] = Field("target", description="which encoder is probed and exported")
    projection_dim: int = Field(512, ge=1, description="width of the projector and of its output")


@register("orchestra")
class Orchestra(LocalTraining):
    """Local clusters of equal size become global clusters, which a sample and its views must share."""

    Config = OrchestraConfig
    defaults = {"views": {"preset": "byol"}}

    def __init__(self, config: OrchestraConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        if config.degeneracy_weight > 0 and len(setting.input_shape) != 3:
            raise UserError("method.degeneracy_weight must be 0 for samples that are no images: rotations need images.")
        self.config = config

    @property
    def network_names(self) -> tuple[str, ...]:
        online = ("encoder", "projector", "rotation_head")
        return (*online, "target_encoder", "target_projector") if self.config.aggregate_target else online

    @property
    def shares(self) -> Mapping[str, Share]:
        return {**super().shares, "local_centroids": Share(Reduce.STACK, Reveals.STATISTICS)}

    def phases(self, round: int, server: Payload) -> Sequence[Phase]:
        return (Phase("cluster", everyone=True), Phase("train")) if "centroids" not in server.groups else (Phase("train"),)

    def build(self) -> nn.ModuleDict:
        width = self.config.projection_dim
        nets = nn.ModuleDict()
        for prefix in ("", "target_"):
            encoder = self.backbone()
            nets[prefix + "encoder"] = encoder
            nets[prefix + "projector"] = mlp([encoder.feature_dim, width, width], norm=self.model.norm)
        nets["rotation_head"] = nn.Linear(width, 4)
        for name in ("encoder", "projector"):
            nets["target_" + name].load_state_dict(nets[name].state_dict())
            freeze(nets["target_" + name])
        return nets

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        groups = {name: server.groups[name] for name in self.network_names}
        return Payload(groups) if ctx.phase == "cluster" else Payload({**groups, "centroids": server.groups["centroids"]})

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        memory = _Memory(self.config.memory_size)
        if not self.config.aggregate_target:
            for name in ("encoder", "projector"):
                load_state(nets["target_" + name], received.groups[name])
        if ctx.phase == "cluster":
            for name in self.network_names:
                load_state(nets[name], received.groups[name])
            self._fill(memory, nets, data, ctx)
            return Update(ctx.client_id, float(len(data)), Payload(self._local_centroids(memory, ctx))), local
        centroids = received.groups["centroids"]["centroids"].to(ctx.device)
        update = self.train(nets, received, data, ctx, lambda batch, rng: self._loss(nets, batch, rng, centroids, memory))
        groups = {**update.payload.groups, **self._local_centroids(memory, ctx)}
        return Update(ctx.client_id, update.weight, Payload(groups), update.metrics), local

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Terms:
        raise NotImplementedError("the loss needs the round's centroids; see client_step")

    def after_step(self, nets: nn.ModuleDict, ctx: Context) -> None:
        for name in ("encoder", "projector"):
            update_ema(nets["target_" + name], nets[name], self.config.ema)

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        server = super().server_step(server, aggregate, ctx)
        received = [tensors["centroids"] for _, tensors in aggregate.stacks.get("local_centroids", [])]
        if not received:
            return server
        points = torch.cat(received)
        num_clusters = min(self.config.num_global_clusters, len(points))
        previous = server.groups.get("centroids", {}).get("centroids")
        initial = previous if previous is not None and len(previous) == num_clusters else None
        clusters = equal_size_clustering(points, num_clusters, ctx.rng("global clustering"), initial)
        server = server.with_scalars(delta=mixing(points, clusters), num_global_clusters=num_clusters)
        return server.with_groups(centroids={"centroids": clusters.centroids})

    def server_metrics(self, server: Payload) -> Mapping[str, float]:
        return {name: float(value) for name, value in server.scalars.items()}

    def encoder(self, server: Payload) -> nn.Module:
        return self._evaluated(server)[0].eval()

    def assigner(self, server: Payload) -> nn.Module | None:
        if "centroids" not in server.groups:
            return None
        encoder, projector = self._evaluated(server)
        return NearestCentroid(encoder, projector, server.groups["centroids"]["centroids"], self.config.temperature).eval()

    def _evaluated(self, server: Payload) -> tuple[nn.Module, nn.Module]:
        nets = self.build()
        prefix = "target_" if self.config.evaluate == "target" and self.config.aggregate_target else ""
        for name in ("encoder", "projector"):
            load_state(nets[name], server.groups[prefix + name])
        return nets["encoder"], nets["projector"]

    def _loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator, centroids: Tensor, memory: _Memory) -> Terms:
        config = self.config
        view = self.views.first(batch.x, generator)
        with torch.no_grad():
            z_target = self._represent(nets, batch.x if config.target_view == "plain" else view, target=True)
            assignment = F.softmax(z_target @ centroids.T / config.temperature, dim=1)
        memory.add(batch.positions, z_target)
        second = view if config.target_view == "plain" else self.views.second(batch.x, generator)
        if config.degeneracy_weight == 0:
            z_online = self._represent(nets, second)
            cluster_loss = F.cross_entropy(z_online @ centroids.T / config.temperature, assignment)
            return {"loss": cluster_loss, "cluster_loss": cluster_loss}
        turns = torch.randint(4, (len(batch),), generator=generator, device=batch.x.device)
        both = torch.cat((second, rotate_quarter_turns(batch.x, turns)))
        projected, rotated = nets["projector"](nets["encoder"](both)).chunk(2)
        cluster_loss = F.cross_entropy(F.normalize(projected, dim=1) @ centroids.T / config.temperature, assignment)
        rotation_loss = F.cross_entropy(nets["rotation_head"](rotated), turns)
        total = cluster_loss + config.degeneracy_weight * rotation_loss
        return {"loss": total, "cluster_loss": cluster_loss, "rotation_loss": rotation_loss}

    @staticmethod
    def _represent(nets: nn.ModuleDict, x: Tensor, target: bool = False) -> Tensor:
        prefix = "target_" if target else ""
        return F.normalize(nets[prefix + "projector"](nets[prefix + "encoder"](x)), dim=1)

    def _fill(self, memory: _Memory, nets: nn.ModuleDict, data: ClientData, ctx: Context) -> None:
        order = torch.randperm(len(data), generator=ctx.rng("order"))[: self.config.memory_size]
        with torch.no_grad():
            for positions in order.split(max(2, self.training.batch_size)):
                if len(positions) >= self.min_batch:
                    memory.add(positions, self._represent(nets, data.batch(positions), target=True))

    def _local_centroids(self, memory: _Memory, ctx: Context) -> dict[str, Tensors]:
        """The centroids a client sends: fewer when it has few samples, none when it has fewer than ``min_cluster_size``."""
        points = memory.points()
        num_clusters = min(self.config.num_local_clusters, len(points) // self.config.min_cluster_size)
        if num_clusters == 0:
            return {}
        clusters = equal_size_clustering(points, num_clusters, ctx.rng("local clustering"))
        return {"local_centroids": {"centroids": clusters.centroids}}


class NearestCentroid(nn.Module):
    """Samples to cluster scores: similarity to the global centroids over the temperature."""

    centroids: Tensor

    def __init__(self, encoder: nn.Module, projector: nn.Module, centroids: Tensor, temperature: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector
        self.register_buffer("centroids", centroids)
        self.temperature = temperature

    def forward(self, x: Tensor) -> Tensor:
        """Scores, shape (batch, num_clusters)."""
        return F.normalize(self.projector(self.encoder(x)), dim=1) @ self.centroids.T / self.temperature


class _Memory:
    """The most recent representations of different samples of a client in this round; it never leaves the client.

    A sample that comes again in a later epoch replaces its older self, so a cluster of k points stands for k samples.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows: dict[int, Tensor] = {}

    def add(self, positions: Tensor, z: Tensor) -> None:
        for position, row in zip(positions.tolist(), z.detach().cpu(), strict=True):
            self._rows.pop(position, None)
            self._rows[position] = row
        while len(self._rows) > self._size:
            del self._rows[next(iter(self._rows))]

    def points(self) -> Tensor:
        return torch.stack(list(self._rows.values())) if self._rows else torch.empty(0, 1)
