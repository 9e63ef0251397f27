"""Orchestra: globally consistent clustering of data that stays on its clients.

Lubana et al., "Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering" (ICML 2022).
Clients cluster the representations of their own samples into clusters of equal size and send the centroids; the server clusters
these into global centroids; clients learn to give a sample and its views the same global cluster, and to predict rotations,
which keeps the clusters from collapsing. The minus signs of the paper's Algorithm 1 are slips: cross-entropies are minimised.

What leaves a client besides networks: with ``privacy = "k-anonymous"`` centroids of clusters, with ``"local-dp"`` those of a
noisy tree (clustering/private.py), with ``share = "representations"``, the paper's idealised setting, every representation in
its memory. ``local-dp`` embeds all samples with the received target in eval mode, before training, for differential privacy
needs representations of single samples; the others cluster what passed through the moving target during training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from unisono.clustering.equal_mass import equal_mass_clustering
from unisono.clustering.equal_size import Clusters, equal_size_clustering, mixing
from unisono.clustering.private import Noise, private_centroids, random_projection
from unisono.clustering.prototypes import prototype_clustering
from unisono.clustering.recent_points import RecentPoints
from unisono.clustering.two_level import both_clusterings, local_number
from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import Guarantee, Phase, register
from unisono.core.noise import SeededNoise, SystemNoise
from unisono.core.payload import UNIT, Aggregate, Form, Payload, Reduce, Reveals, Share, Tensors, Update
from unisono.data.views import rotate_quarter_turns
from unisono.evaluation.clusters import clustering_accuracy
from unisono.evaluation.features import embed
from unisono.methods.before_training import embed_before_training
from unisono.methods.local_training import Batch, LocalTraining, LossTerms
from unisono.models.first_statistics import random_samples, set_first_statistics
from unisono.models.heads import NearestCentroid, mlp
from unisono.models.nets import add_targets, load_state
from unisono.models.norms import Norm
from unisono.privacy.guarantee import SMALLEST_CLUSTER, KAnonymity, NoGuarantee
from unisono.privacy.local_dp import LocalDp

NUM_RANDOM = 256
"""Random samples that give BatchNorm its statistics in the first round of local-dp."""


class OrchestraConfig(Section):
    """Options of Orchestra; the defaults are the paper's cross-device setting for CIFAR-10."""

    num_global_clusters: int = Field(32, ge=1, description="G, clusters at the server")
    num_local_clusters: int = Field(8, ge=1, description="L, clusters at a client")
    min_cluster_size: int = Field(2, ge=2, description="k of k-anonymity: no centroid stands for fewer samples")
    global_clustering: Literal["prototypes", "equal-size"] = Field(
        "prototypes",
        description="at the server. prototypes: 500 gradient steps towards clusters of equal mass, as in the public code; "
        "equal-size: clusters of exactly equal size, which need as many centroids as clusters",
    )
    local_clustering: Literal["equal-size", "sinkhorn"] = Field(
        "equal-size",
        description="at a client. sinkhorn: clusters of nearly equal size, as in the public code; those below min_cluster_size "
        "are not sent",
    )
    first_clustering: Literal["cohort", "all"] = Field(
        "cohort", description="the clients whose untrained representations give the first global clusters"
    )
    memory_size: int = Field(128, ge=2, description="most recent target representations that a client clusters")
    temperature: float = Field(0.1, gt=0, description="T of the cluster assignments")
    ema: float = Field(0.996, ge=0, le=1, description="momentum of the target networks; 0 is the ablation without a target")
    degeneracy_weight: float = Field(1.0, ge=0, description="weight of the rotation loss; 0 is the ablation without it")
    target_view: Literal["plain", "augmented"] = Field(
        "augmented",
        description="what the target sees and the rotation task rotates. augmented: first views, as in the public code; "
        "plain: the samples, as in the paper's Algorithm 1. The online network sees second views",
    )
    aggregate_target: bool = Field(True, description="average the targets too; false restarts them from the online networks")
    evaluate: Literal["target", "online"] = Field(
        "online", description="which encoder is probed and exported. online: as in the public code; target: as in Algorithm 2"
    )
    projection_dim: int = Field(512, ge=1, description="width of the projector and of its output")
    projector_norm: Literal["batch", "group"] | None = Field(
        None, description="normalisation inside the projector; batch spreads the first representations; unset: model.norm"
    )
    last_norm: bool = Field(True, description="normalise the projector's output too, without scale and shift")
    share: Literal["centroids", "representations"] = Field(
        "centroids", description="what the server clusters; representations: the idealised setting, needs consent"
    )
    privacy: Literal["k-anonymous", "local-dp"] = Field("k-anonymous", description="what protects the centroids")
    epsilon: float = Field(1.0, gt=0, description="local-dp: privacy loss of one release of centroids")
    delta: float = Field(1e-3, gt=0, lt=1, description="local-dp: probability with which it may fail, well below 1 / samples")
    tree_depth: int | None = Field(None, ge=1, le=16, description="local-dp: levels of the tree; unset: about 2 L leaves")
    sketch_dim: int | None = Field(None, ge=1, description="local-dp: width of a public random projection; unset: none")
    noise_source: Literal["seed", "system"] = Field(
        "seed", description="local-dp: seed can be repeated, but the server knows it; system is secret, as real clients need"
    )

    @model_validator(mode="after")
    def _noise_is_for_centroids(self) -> OrchestraConfig:
        if self.share == "representations" and self.privacy == "local-dp":
            raise ValueError(
                'share = "representations" sends samples one by one: set method.privacy = "k-anonymous", which is unused'
            )
        return self


@register("orchestra")
class Orchestra(LocalTraining[OrchestraConfig]):
    """Local clusters of equal size become global clusters, which a sample and its views must share."""

    views_at_input_size = False
    Config = OrchestraConfig
    phase_names = ("cluster", "train")
    single_phases = ("cluster",)
    defaults = {"views": {"preset": "orchestra"}}
    moves_targets_first = True
    target_networks = {"target_encoder": "encoder", "target_projector": "projector"}

    def setup(self) -> None:
        super().setup()
        if self.config.degeneracy_weight > 0 and len(self.info.input_shape) != 3:
            raise UserError("method.degeneracy_weight must be 0 for samples that are no images: rotations need images.")
        self.check_micro_batch(self.projector_norm != "batch")

    @property
    def projector_norm(self) -> Norm:
        """The normalisation inside the projector."""
        return self.config.projector_norm or self.model.norm

    @property
    def min_batch_size(self) -> int:
        return 2 if self.projector_norm == "batch" else super().min_batch_size

    @property
    def shared_networks(self) -> tuple[str, ...]:
        online = ("encoder", "projector", "rotation_head")
        return (*online, *self.target_networks) if self.config.aggregate_target else online

    @property
    def shares(self) -> Mapping[str, Share]:
        config = self.config
        if config.share == "representations":
            points = Form(("points", config.projection_dim), config.memory_size, -UNIT, UNIT)
            return {**super().shares, "representations": Share(Reduce.STACK, Reveals.REPRESENTATIONS, {"points": points})}
        centroids = Form(("centroids", config.projection_dim), config.num_local_clusters, -UNIT, UNIT)
        return {**super().shares, "local_centroids": Share(Reduce.STACK, Reveals.STATISTICS, {"centroids": centroids})}

    def release_guarantee(self) -> Guarantee:
        if self.config.share == "representations":
            return NoGuarantee()
        return self._budget if self.config.privacy == "local-dp" else KAnonymity(self.config.min_cluster_size)

    def preflight_warnings(self, client_sizes: Sequence[int]) -> Sequence[str]:
        if self.config.privacy != "local-dp":
            return ()
        return self._budget.warnings(client_sizes, self.config.sketch_dim or self.config.projection_dim)

    @classmethod
    def study_problem(cls, config: Section, clients_per_round: int, scale: str) -> str | None:
        assert isinstance(config, OrchestraConfig)
        if scale == "paper" and config.global_clustering == "prototypes":
            return None  # the paper's own numbers, few centroids or not
        per_client = config.memory_size if config.share == "representations" else config.num_local_clusters
        sent, number = clients_per_round * per_client, config.num_global_clusters
        if sent >= 2 * number:
            return None
        return (
            f"{clients_per_round} clients send {sent} centroids for method.num_global_clusters = {number}, and a study needs "
            "two for each: lower it, or raise method.num_local_clusters or cohort.size"
        )

    def phases(self, round: int, server: Payload) -> Sequence[Phase]:
        if "centroids" in server.groups:
            return (Phase("train"),)
        return (Phase("cluster", all_clients=self.config.first_clustering == "all"), Phase("train"))

    def groups_sent(self, ctx: Context) -> Collection[str]:
        return self.shares.keys() - set(self.shared_networks) if ctx.phase == "cluster" else self.shares.keys()

    def build_networks(self) -> nn.ModuleDict:
        width, last_norm = self.config.projection_dim, self.config.last_norm
        nets = nn.ModuleDict()
        for prefix in ("", "target_"):
            encoder = self.backbone()
            nets[prefix + "encoder"] = encoder
            nets[prefix + "projector"] = mlp([encoder.feature_dim, width, width], self.projector_norm, last_norm)
        nets["rotation_head"] = nn.Linear(width, 4)
        return add_targets(nets, ("encoder", "projector"))  # copies, in place of the second pair

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        groups = {name: server.groups[name] for name in self.shared_networks}
        return Payload(groups) if ctx.phase == "cluster" else Payload({**groups, "centroids": server.groups["centroids"]})

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        memory, is_private = RecentPoints(self.config.memory_size), self.config.privacy == "local-dp"
        if is_private or ctx.phase == "cluster":
            self.load_networks(nets, received, local, ctx)
        private = self._private_centroids(nets, data, ctx) if is_private else None
        if ctx.phase == "cluster":
            if private is None:
                self._fill(memory, nets, data, ctx)
            update = Update(ctx.client_id, float(len(data)), Payload())
        else:
            centroids = received.groups["centroids"]["centroids"].to(ctx.device)
            update = self.train(nets, received, local, data, ctx, lambda *each: self._loss(nets, centroids, memory, *each))
        released, metrics = self._release(memory, ctx) if private is None else (private, {})
        sent = update.payload.with_groups(**released)
        return Update(ctx.client_id, update.weight, sent, {**update.metrics, **metrics}), local

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        server = super().server_step(server, aggregate, ctx)
        received = [points for stack in aggregate.stacks.values() for _, tensors in stack for points in tensors.values()]
        if not received:
            return server
        points = torch.cat(received)
        clusters = self._global_clusters(points, server.groups.get("centroids", {}).get("centroids"), ctx)
        server = server.with_groups(centroids={"centroids": clusters.centroids})
        return server.with_scalars(delta=mixing(points, clusters), num_centroids=len(points))

    def _global_clusters(self, points: Tensor, previous: Tensor | None, ctx: Context) -> Clusters:
        """Return clusters of what clients sent, starting from the last round's centroids."""
        config, number, rng = self.config, self.config.num_global_clusters, ctx.rng("global clustering")
        if config.global_clustering == "prototypes":
            return prototype_clustering(points, number, rng, previous, config.temperature)
        if len(points) < number:
            raise UserError(
                f"Round {ctx.round + 1}: {len(points)} centroids arrived for method.num_global_clusters = {number}, and "
                'method.global_clustering = "equal-size" needs one for each: lower it, raise method.num_local_clusters or the '
                'cohort, or set method.global_clustering = "prototypes".'
            )
        return equal_size_clustering(points, number, rng, previous)

    def server_metrics(self, server: Payload) -> Mapping[str, float]:
        return {name: float(value) for name, value in server.scalars.items()}

    def round_notes(self, before: Payload, after: Payload) -> Sequence[str]:
        wanted = self.config.num_global_clusters
        number, previous = (int(server.scalars.get("num_centroids", wanted)) for server in (after, before))
        notes = (f"{number} centroids arrived for {wanted} global clusters, so some clusters have none",)
        return notes if number < wanted <= previous else ()

    def cluster_consistency(self, server: Payload, clients: Sequence[Tensor], ctx: Context) -> float:
        """Return the fraction c of Proposition 3.3: samples that keep their cluster in a clustering of all representations.

        At most ``memory_size`` samples of a client are looked at. Both clusterings have clusters of equal size.
        """
        config, net = self.config, nn.Sequential(*self._evaluated(server), nn.Flatten())
        rng = ctx.rng("consistency")
        parts = [
            samples[torch.randperm(len(samples), generator=rng)[: config.memory_size]] for samples in clients if len(samples)
        ]
        points_of_clients = [F.normalize(embed(net, part, ctx.device), dim=1) for part in parts]
        ideal, found = both_clusterings(
            points_of_clients, config.num_local_clusters, config.min_cluster_size, config.num_global_clusters, rng
        )
        return clustering_accuracy(ideal, found) if len(found) else 1.0

    def encoder(self, server: Payload) -> nn.Module:
        return self._evaluated(server)[0].eval()

    def projector(self, server: Payload) -> nn.Module:
        return self._evaluated(server)[1].eval()

    def cluster_model(self, server: Payload) -> nn.Module | None:
        if "centroids" not in server.groups:
            return None
        encoder, projector = self._evaluated(server)
        return NearestCentroid(encoder, projector, server.groups["centroids"]["centroids"], self.config.temperature).eval()

    def _evaluated(self, server: Payload) -> tuple[nn.Module, nn.Module]:
        nets = self.build_networks()
        prefix = "target_" if self.config.evaluate == "target" and self.config.aggregate_target else ""
        for name in ("encoder", "projector"):
            load_state(nets[name], server.groups[prefix + name])
        return nets["encoder"], nets["projector"]

    def _loss(
        self, nets: nn.ModuleDict, centroids: Tensor, memory: RecentPoints, batch: Batch, generator: torch.Generator
    ) -> LossTerms:
        config = self.config
        with torch.no_grad():
            z_target = self._target(nets, self._first_views(batch.x, generator))
            assignment = F.softmax(z_target @ centroids.T / config.temperature, dim=1)
        memory.add(batch.positions, z_target)
        views = [self.views.second(batch.x, generator)]
        turns = torch.randint(4, (len(batch),), generator=generator, device=batch.x.device)
        if config.degeneracy_weight > 0:
            views.append(rotate_quarter_turns(self._first_views(batch.x, generator), turns))
        features = self.pass_views(nets["encoder"], torch.cat(views), len(views))
        projected, *rotated = self.pass_views(nets["projector"], features, len(views)).chunk(len(views))
        cluster_loss = F.cross_entropy(F.normalize(projected, dim=1) @ centroids.T / config.temperature, assignment)
        if not rotated:
            return {"loss": cluster_loss, "cluster_loss": cluster_loss}
        rotation_loss = F.cross_entropy(nets["rotation_head"](rotated[0]), turns)
        total = cluster_loss + config.degeneracy_weight * rotation_loss
        return {"loss": total, "cluster_loss": cluster_loss, "rotation_loss": rotation_loss}

    def _first_views(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x if self.config.target_view == "plain" else self.views.first(x, generator)

    @staticmethod
    def _target(nets: nn.ModuleDict, x: Tensor) -> Tensor:
        return F.normalize(nets["target_projector"](nets["target_encoder"](x)), dim=1)

    def _fill(self, memory: RecentPoints, nets: nn.ModuleDict, data: ClientData, ctx: Context) -> None:
        """Add untrained representations; the statistics of their batches are forgotten, for no network is sent."""
        nets.train()
        order = torch.randperm(len(data), generator=ctx.rng("order"))[: self.config.memory_size]
        views = ctx.rng("views", ctx.device)
        with torch.no_grad():
            for positions in order.split(max(2, self.training.batch_size)):
                if len(positions) >= self.min_batch_size:
                    memory.add(positions, self._target(nets, self._first_views(data.batch(positions), views)))

    def _release(self, memory: RecentPoints, ctx: Context) -> tuple[dict[str, Tensors], dict[str, float]]:
        """Return what a client sends: fewer centroids when it has few samples, none below ``min_cluster_size``."""
        points = memory.points().float()
        if self.config.share == "representations":
            return ({"representations": {"points": points}} if len(points) else {}), {}
        num_clusters = local_number(len(points), self.config.num_local_clusters, self.config.min_cluster_size)
        if num_clusters == 0:
            return {}, {}
        cluster = equal_size_clustering if self.config.local_clustering == "equal-size" else equal_mass_clustering
        centroids, sizes = cluster(points, num_clusters, ctx.rng("local clustering")).of_size(self.config.min_cluster_size)
        return {"local_centroids": {"centroids": centroids}}, {SMALLEST_CLUSTER: float(sizes.min())}

    def _private_centroids(self, nets: nn.ModuleDict, data: ClientData, ctx: Context) -> dict[str, Tensors]:
        """Return noisy centroids of all of the client's samples as the received target sees them, each by itself."""
        config, width = self.config, self.config.projection_dim
        noise = random_samples(NUM_RANDOM, self.info, Context(ctx.seed).rng("random samples")).to(ctx.device)
        set_first_statistics(nn.Sequential(nets["target_encoder"], nets["target_projector"]), noise)
        points = embed_before_training(nets, (), Payload(), data, lambda x: self._target(nets, x))
        source = SeededNoise(ctx.rng("noise")) if config.noise_source == "seed" else SystemNoise()
        sketch = config.sketch_dim or width
        projection = random_projection(width, sketch, Context(ctx.seed).rng("sketch")) if sketch < width else None
        centroids = private_centroids(
            points.cpu().reshape(len(data), width),
            config.num_local_clusters,
            self._budget.num_levels,
            Noise(self._budget.count_epsilon, self._budget.sum_deviation),
            ctx.rng("hash"),
            source,
            projection=projection,
            min_count=config.min_cluster_size,
        )
        return {"local_centroids": {"centroids": centroids}} if len(centroids) else {}

    @property
    def _budget(self) -> LocalDp:
        config = self.config
        depth = config.tree_depth or (2 * config.num_local_clusters - 1).bit_length()
        return LocalDp(config.epsilon, config.delta, depth, seeded=config.noise_source == "seed")
