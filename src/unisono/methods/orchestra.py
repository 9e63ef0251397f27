"""Orchestra: globally consistent clustering of data that stays on its clients.

Lubana et al., "Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering" (ICML 2022).
Clients cluster the representations of their own samples into clusters of equal size and send the centroids; the server clusters
these into global centroids; clients learn to give a sample and its views the same global cluster, and to predict rotations,
which keeps the clusters from collapsing. The minus signs of the paper's Algorithm 1 are slips: cross-entropies are minimised.

What leaves a client besides networks: with ``privacy = "k-anonymous"`` centroids of clusters of equal size, with ``"local-dp"``
centroids of a noisy tree (clustering/private.py), with ``share = "representations"``, the paper's idealised setting, every
representation in its memory. Differential privacy needs representations that depend on their own sample alone, so ``local-dp``
embeds all samples with the received target in eval mode, before training, where the others cluster what passed through the
moving target during training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from unisono.clustering.equal_size import equal_size_clustering, mixing
from unisono.clustering.private import Noise, private_centroids, random_projection
from unisono.clustering.two_level import local_number, two_level_clustering
from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import Guarantee, Phase, register
from unisono.core.noise import SeededNoise, SystemNoise
from unisono.core.payload import Aggregate, Payload, Reduce, Reveals, Share, Tensors, Update
from unisono.data.views import rotate_quarter_turns
from unisono.evaluation.clusters import clustering_accuracy
from unisono.evaluation.features import embed
from unisono.methods.before_training import embed_before_training
from unisono.methods.local_training import Batch, LocalTraining, LossTerms
from unisono.models.heads import mlp
from unisono.models.nets import add_targets, load_state
from unisono.models.norms import Norm
from unisono.privacy.guarantee import SMALLEST_CLUSTER, KAnonymity, NoGuarantee
from unisono.privacy.local_dp import LocalDp


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
    projector_norm: Literal["batch", "group"] | None = Field(
        None, description="normalisation inside the projector; batch spreads the first representations; unset: model.norm"
    )
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

    Config = OrchestraConfig
    defaults = {"views": {"preset": "byol"}}
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
        if self.config.share == "representations":
            return {**super().shares, "representations": Share(Reduce.STACK, Reveals.REPRESENTATIONS)}
        return {**super().shares, "local_centroids": Share(Reduce.STACK, Reveals.STATISTICS)}

    def release_guarantee(self) -> Guarantee:
        if self.config.share == "representations":
            return NoGuarantee()
        return self._budget if self.config.privacy == "local-dp" else KAnonymity(self.config.min_cluster_size)

    def preflight_warnings(self, client_sizes: Sequence[int]) -> Sequence[str]:
        if self.config.privacy != "local-dp":
            return ()
        median = sorted(client_sizes)[len(client_sizes) // 2]
        ratio = self._budget.noise_to_signal(median, self.config.sketch_dim or self.config.projection_dim)
        if ratio <= 1:
            return ()
        return (
            f"the noise of method.privacy = 'local-dp' is {ratio:.1f} times as large as the signal for a client of {median} "
            "samples, so its centroids are mostly noise: raise method.epsilon, or lower method.projection_dim, tree_depth "
            "or the number of clients",
        )

    def phases(self, round: int, server: Payload) -> Sequence[Phase]:
        return (Phase("cluster", all_clients=True), Phase("train")) if "centroids" not in server.groups else (Phase("train"),)

    def groups_sent(self, ctx: Context) -> Collection[str]:
        return self.shares.keys() - set(self.shared_networks) if ctx.phase == "cluster" else self.shares.keys()

    def build_networks(self) -> nn.ModuleDict:
        width = self.config.projection_dim
        nets = nn.ModuleDict()
        for prefix in ("", "target_"):
            encoder = self.backbone()
            nets[prefix + "encoder"] = encoder
            nets[prefix + "projector"] = mlp([encoder.feature_dim, width, width], norm=self.projector_norm)
        nets["rotation_head"] = nn.Linear(width, 4)
        return add_targets(nets, ("encoder", "projector"))  # copies, in place of the second pair

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        groups = {name: server.groups[name] for name in self.shared_networks}
        return Payload(groups) if ctx.phase == "cluster" else Payload({**groups, "centroids": server.groups["centroids"]})

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        memory = _Memory(self.config.memory_size)
        is_private = self.config.privacy == "local-dp"
        if is_private or ctx.phase == "cluster":
            self.load_networks(nets, received, local, ctx)
        private = self._private_centroids(nets, received, data, ctx) if is_private else None
        if ctx.phase == "cluster":
            if private is None:
                self._fill(memory, nets, data, ctx)
            update = Update(ctx.client_id, float(len(data)), Payload())
        else:
            centroids = received.groups["centroids"]["centroids"].to(ctx.device)
            update = self.train(nets, received, local, data, ctx, lambda *each: self._loss(nets, centroids, memory, *each))
        released, metrics = self._release(memory, ctx) if private is None else (private, {})
        groups = {**update.payload.groups, **released}
        return Update(ctx.client_id, update.weight, Payload(groups), {**update.metrics, **metrics}), local

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        server = super().server_step(server, aggregate, ctx)
        stacks = aggregate.stacks.get("representations" if self.config.share == "representations" else "local_centroids", [])
        received = [points for _, tensors in stacks for points in tensors.values()]
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

    def round_notes(self, before: Payload, after: Payload) -> Sequence[str]:
        number, wanted = after.scalars.get("num_global_clusters"), self.config.num_global_clusters
        if number is None or number == wanted or number == before.scalars.get("num_global_clusters"):
            return ()
        return (f"{number} global clusters instead of {wanted}: no more centroids arrived",)

    def cluster_consistency(self, server: Payload, clients: Sequence[Tensor], ctx: Context) -> float:
        """Return the fraction c of Proposition 3.3: samples that keep their cluster in a clustering of all representations.

        Clusters are matched one to one. The clustering in one place is the closest to its centroids of three: one that starts
        from the global centroids, so that c does not fall by a mere change of start, and two that start anew, so that it does
        not stay where global centroids are poor. For simulations: it looks at all clients' samples.

        Args:
            server: the server's state.
            clients: samples of each client, as its step would be given them; at most ``memory_size`` are looked at.
            ctx: draws them and the first centroids.
        """
        config, net = self.config, nn.Sequential(*self._evaluated(server), nn.Flatten())
        rng = ctx.rng("consistency")
        parts = [
            samples[torch.randperm(len(samples), generator=rng)[: config.memory_size]] for samples in clients if len(samples)
        ]
        points_of_clients = [F.normalize(embed(net, part, ctx.device), dim=1) for part in parts]
        clusters, present = two_level_clustering(
            points_of_clients, config.num_local_clusters, config.min_cluster_size, config.num_global_clusters, rng
        )
        if len(present) == 0:
            return 1.0
        points = torch.cat([points_of_clients[position] for position in present.tolist()])
        starts = (clusters.centroids, None, None)
        found = [equal_size_clustering(points, len(clusters.centroids), rng, start) for start in starts]
        ideal = max(found, key=lambda each: float((points * each.centroids[each.assignment]).sum()))
        return clustering_accuracy(ideal.assignment, clusters.assignment)

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
        self, nets: nn.ModuleDict, centroids: Tensor, memory: _Memory, batch: Batch, generator: torch.Generator
    ) -> LossTerms:
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
                if len(positions) >= self.min_batch_size:
                    memory.add(positions, self._represent(nets, data.batch(positions), target=True))

    def _release(self, memory: _Memory, ctx: Context) -> tuple[dict[str, Tensors], dict[str, float]]:
        """Return what a client sends: fewer centroids when it has few samples, none below ``min_cluster_size``."""
        points = memory.points()
        if self.config.share == "representations":
            return ({"representations": {"points": points}} if len(points) else {}), {}
        num_clusters = local_number(len(points), self.config.num_local_clusters, self.config.min_cluster_size)
        if num_clusters == 0:
            return {}, {}
        clusters = equal_size_clustering(points, num_clusters, ctx.rng("local clustering"))
        smallest = float(clusters.assignment.bincount(minlength=num_clusters).min())
        return {"local_centroids": {"centroids": clusters.centroids}}, {SMALLEST_CLUSTER: smallest}

    def _private_centroids(self, nets: nn.ModuleDict, received: Payload, data: ClientData, ctx: Context) -> dict[str, Tensors]:
        """Return noisy centroids of all of the client's samples as the received target sees them, each by itself."""
        config, width = self.config, self.config.projection_dim
        points = embed_before_training(
            nets, self.shared_networks, received, data, lambda x: self._represent(nets, x, target=True)
        )
        source = SeededNoise(ctx.rng("noise")) if config.noise_source == "seed" else SystemNoise()
        projection = None
        if config.sketch_dim is not None and config.sketch_dim < width:
            projection = random_projection(width, config.sketch_dim, Context(ctx.seed).rng("sketch"))
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
        """Return scores, shape (batch, num_clusters)."""
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
