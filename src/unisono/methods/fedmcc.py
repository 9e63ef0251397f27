"""FedMCC: representations first, clusters on top of them second.

Miao & Koyuncu, "Federated Momentum Contrastive Clustering", section III. In stage 1, "represent", clients learn the
encoder and the instance head from the instance loss (Eq. 8). In stage 2, "cluster", the encoder is frozen in eval mode,
and only the cluster head is learnt (Eq. 9) and averaged. The paper leaves open what a target is between rounds: Algorithm 1
sends the online networks alone, so targets ``restart`` from them; the code of FedU, on which it builds, lets clients ``keep``
theirs; Table VII ``average``s them.

On an encoder that does not separate the classes well, what stage 2 finds depends on the random head that it starts from:
the loss has many minima. ``cluster_start = "kmeans"``, which is not in the paper, starts it from federated k-means instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from unisono.clustering.federated_kmeans import merge_clusters, own_clusters
from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import Phase, register
from unisono.core.payload import Aggregate, Form, Payload, Reduce, Reveals, Share, Update
from unisono.methods.before_training import embed_before_training
from unisono.methods.cluster_heads import (
    ENTROPY,
    ClusterHeads,
    ClusterHeadsConfig,
    cluster_loss,
    entropies,
    head_at_centroids,
    instance_loss,
)
from unisono.methods.local_training import Batch, LossTerms, NetworkRoles
from unisono.models.nets import add_targets, get_state

REPRESENT, SEED, CLUSTER = "represent", "seed", "cluster"
LEARNT = {REPRESENT: ("encoder", "instance_head"), CLUSTER: ("cluster_head",)}
"""The online networks that a stage trains."""


class FedMCCConfig(ClusterHeadsConfig):
    """Options of FedMCC."""

    ema: float = Field(0.99, ge=0, le=1, description="momentum of the target networks")
    cluster_ema: float | None = Field(None, ge=0, le=1, description="momentum of the target in stage 2; unset: ema")
    target: Literal["restart", "keep", "average"] = Field(
        "restart", description="targets between rounds: as the received online networks, the client's own, or averaged too"
    )
    represent_rounds: int | None = Field(
        None, ge=0, description="most rounds of stage 1; unset: ten of eleven; 0 with model.pretrained: stage 2 alone"
    )
    cluster_start: Literal["random", "kmeans"] = Field(
        "random", description="the first cluster head; kmeans: by clients' centroids and counts of features, not in the paper"
    )
    min_cluster_size: int = Field(2, ge=1, description="kmeans: a client says nothing of clusters with fewer samples")
    handover: Literal["rounds", "plateau"] = Field(
        "rounds", description="when stage 2 begins: after represent_rounds, or as soon as the loss stops falling"
    )
    plateau_patience: int = Field(5, ge=1, description="rounds without progress that make a plateau")
    plateau_tolerance: float = Field(0.005, ge=0, description="relative fall of the loss that counts as progress")


@register("fedmcc")
class FedMCC(ClusterHeads[FedMCCConfig]):
    """Momentum contrastive clustering in two stages: the encoder first, then the clusters with the encoder frozen."""

    Config = FedMCCConfig
    defaults = {**ClusterHeads.defaults, "training": {**ClusterHeads.defaults["training"], "local_epochs": 5}}
    training_phases = (REPRESENT, CLUSTER)
    phase_names = (REPRESENT, SEED, CLUSTER)
    single_phases = (SEED,)

    def setup(self) -> None:
        super().setup()
        config, num_rounds = self.config, self.info.num_rounds
        if config.represent_rounds == 0 and self.model.pretrained is None:
            raise UserError("method.represent_rounds = 0 clusters with a finished encoder: name one in model.pretrained.")
        default = num_rounds - max(1, round(num_rounds / 11))
        self.represent_rounds = default if config.represent_rounds is None else config.represent_rounds

    @property
    def shared_networks(self) -> tuple[str, ...]:
        return (*self._shared(REPRESENT), *self._shared(CLUSTER))

    @property
    def shares(self) -> Mapping[str, Share]:
        if self.config.cluster_start != "kmeans":
            return super().shares
        form = {
            "centroids": Form(("seeds", self._width), self.num_clusters),
            "counts": Form(("seeds",), self.num_clusters, 1.0),
            "squared_distance": Form((1,), low=0.0),
        }
        return {**super().shares, "seeds": Share(Reduce.STACK, Reveals.STATISTICS, form)}

    @cached_property
    def _width(self) -> int:
        """Number of features."""
        return int(self.backbone().feature_dim)

    def phases(self, round: int, server: Payload) -> Sequence[Phase]:
        stage = Phase(str(server.scalars["stage"]))
        unseeded = self.config.cluster_start == "kmeans" and "num_seeded" not in server.scalars
        return (Phase(SEED, all_clients=True), stage) if stage.name == CLUSTER and unseeded else (stage,)

    def groups_sent(self, ctx: Context) -> Collection[str]:
        return ("seeds",) if ctx.phase == SEED else self._shared(ctx.phase)

    def build_networks(self) -> nn.ModuleDict:
        return add_targets(super().build_networks(), (*LEARNT[REPRESENT], *LEARNT[CLUSTER]))

    def init_server(self, ctx: Context) -> Payload:
        return super().init_server(ctx).with_scalars(stage=REPRESENT if self.represent_rounds > 0 else CLUSTER)

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        own = {REPRESENT: self._shared(REPRESENT), SEED: ("encoder",), CLUSTER: ("encoder", *self._shared(CLUSTER))}
        names = own.get(ctx.phase, self.shared_networks)  # clients that evaluate are in no phase
        return Payload({name: server.groups[name] for name in names})

    def network_roles(self, phase: str) -> NetworkRoles:
        targets = {f"target_{name}": name for name in LEARNT[phase]}
        personal = tuple(targets) if self.config.target == "keep" else ()
        return NetworkRoles(self._shared(phase), personal, targets, () if phase == REPRESENT else ("encoder",))

    def ema_decay(self, phase: str) -> float:
        own = self.config.cluster_ema if phase == CLUSTER else None
        return self.config.ema if own is None else own

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        if ctx.phase != REPRESENT:
            data = data.clustered
        if ctx.phase == SEED:
            return self._seeds(nets, received, data, ctx), local
        loss = self.loss if ctx.phase == REPRESENT else self.loss_of_clusters
        update = self.train(nets, received, local, data, ctx, lambda batch, rng: loss(nets, batch, rng))
        kept = {name: get_state(nets[name]) for name in self.network_roles(ctx.phase).personal}
        return update, Payload(kept) if kept else local

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        z_a, z_b = nets["instance_head"](self.pass_views(nets["encoder"], views)).chunk(2)
        with torch.no_grad():
            target_h = self.pass_views(nets["target_encoder"], views)
            target_z_a, target_z_b = nets["target_instance_head"](target_h).chunk(2)
        return {"loss": instance_loss([(z_a, target_z_b), (target_z_a, z_b)], self.config)}

    def loss_of_clusters(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        """Return the terms of a batch in stage 2."""
        with torch.no_grad():
            h = nets["encoder"](torch.cat(self.views.pair(batch.x, generator)))
            target_c_a, target_c_b = nets["target_cluster_head"](h).softmax(dim=1).chunk(2)
        c_a, c_b = nets["cluster_head"](h).softmax(dim=1).chunk(2)
        cluster = cluster_loss([(c_a, target_c_b), (target_c_a, c_b)], self.config)
        entropy, share = entropies(c_a, c_b)
        return {"loss": cluster - self.config.entropy_weight * entropy, "cluster_loss": cluster, ENTROPY: share}

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        if ctx.phase == SEED:
            return self._start_clusters(server, aggregate, ctx)
        server = super().server_step(server, aggregate, ctx)
        if ctx.phase == REPRESENT:
            server = self._watch_loss(server, aggregate.metrics.get("loss"))
            patience = self.config.plateau_patience
            stalled = self.config.handover == "plateau" and int(server.scalars["stale_rounds"]) >= patience
            if stalled or ctx.round + 1 >= self.represent_rounds:
                return server.with_scalars(stage=CLUSTER)
        return server

    def round_notes(self, before: Payload, after: Payload) -> Sequence[str]:
        notes = [*super().round_notes(before, after)]
        if before.scalars["stage"] != after.scalars["stage"]:
            notes.append("stage 1 is done: from the next round on the encoder is frozen and the cluster head is learnt.")
        if "num_seeded" not in before.scalars and int(after.scalars.get("num_seeded", self.num_clusters)) < self.num_clusters:
            found = after.scalars["num_seeded"]
            notes.append(
                f"clients could show only {found} of {self.num_clusters} clusters, so the cluster head starts at random."
            )
        return notes

    def cluster_model(self, server: Payload) -> nn.Module | None:
        return super().cluster_model(server) if ENTROPY in server.scalars else None  # else its head has not been trained

    def _shared(self, stage: str) -> tuple[str, ...]:
        names = LEARNT[stage]
        return (*names, *(f"target_{name}" for name in names)) if self.config.target == "average" else names

    def _seeds(self, nets: nn.ModuleDict, received: Payload, data: ClientData, ctx: Context) -> Update:
        """Return centroids and counts of the client's own clusters of features."""
        points = embed_before_training(nets, ("encoder",), received, data, nets["encoder"]).cpu().float()
        found = own_clusters(points, self.num_clusters, self.config.min_cluster_size, ctx.rng("seeds"))
        if found is None:
            return Update(ctx.client_id, float(len(data)), Payload())
        centroids = found.sums / found.counts[:, None]
        spread = torch.tensor([found.squared_distance], dtype=torch.float32)
        sent = {"centroids": centroids, "counts": found.counts, "squared_distance": spread}
        return Update(ctx.client_id, float(len(data)), Payload({"seeds": sent}))

    def _start_clusters(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        """Return the server with a head that assigns to the nearest merged centroid, or the random head if they are too few."""
        seeds = [tensors for _, tensors in aggregate.stacks.get("seeds", [])]
        if not seeds:
            return server.with_scalars(num_seeded=0)
        own, sizes = (torch.cat([tensors[name] for tensors in seeds]) for name in ("centroids", "counts"))
        centroids = merge_clusters(own, sizes, self.num_clusters, ctx.rng("seeds"))
        if len(centroids) < self.num_clusters:
            return server.with_scalars(num_seeded=len(centroids))
        nearest = torch.cdist(own, centroids).argmin(dim=1)
        counts = torch.zeros(len(centroids)).index_add_(0, nearest, sizes)
        # Squared distances to the own centroid and from there to the merged one add up to those to the merged one.
        within = sum(float(tensors["squared_distance"]) for tensors in seeds)
        between = float((sizes * (own - centroids[nearest]).square().sum(dim=1)).sum())
        head = head_at_centroids(centroids, counts, (within + between) / float(sizes.sum()))
        return server.with_groups(**dict.fromkeys(self._shared(CLUSTER), head)).with_scalars(num_seeded=len(centroids))

    def _watch_loss(self, server: Payload, loss: float | None) -> Payload:
        """Count the rounds since the loss last fell by more than the tolerance."""
        best = server.scalars.get("best_loss")
        if loss is None or not isinstance(best, float):
            return server.with_scalars(stale_rounds=0, **({} if loss is None else {"best_loss": loss}))
        if loss < best - self.config.plateau_tolerance * abs(best):
            return server.with_scalars(stale_rounds=0, best_loss=loss)
        return server.with_scalars(stale_rounds=int(server.scalars.get("stale_rounds", 0)) + 1)
