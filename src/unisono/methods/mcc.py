"""Momentum contrastive clustering, centralised with one client; with many it is the joint loss that FedMCC takes apart.

Miao & Koyuncu, "Federated Momentum Contrastive Clustering", section II-B. Both views pass through the online and the
target networks; each online output meets the target output of the other view. The entropies of the online assignments are
maximised (the plus signs in Eq. 6 are slips); those of the target have no gradient and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
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
from unisono.models.nets import add_targets, load_state, update_ema

ONLINE = ("encoder", "instance_head", "cluster_head")


class MCCConfig(ClusterHeadsConfig):
    """Options of momentum contrastive clustering."""

    ema: float = Field(0.99, ge=0, le=1, description="momentum of the target networks")


@register("mcc")
class MCC(LocalTraining[MCCConfig]):
    """Momentum contrastive clustering: each view's online outputs meet the target's outputs of the other view."""

    Config = MCCConfig
    defaults = {
        "training": {"optimizer": "adam", "learning_rate": 3e-4, "weight_decay": 0.0, "batch_size": 128},
        "views": {"preset": "fedmcc"},
    }
    shared_networks = (*ONLINE, *(f"target_{name}" for name in ONLINE))
    min_batch_size = 2

    def setup(self) -> None:
        super().setup()
        self.num_clusters = wanted_clusters(self.config.num_clusters, self.info)

    def build_networks(self) -> nn.ModuleDict:
        encoder = self.backbone()
        nets = nn.ModuleDict({"encoder": encoder, **make_heads(encoder.feature_dim, self.config, self.num_clusters)})
        return add_targets(nets, ONLINE)

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        h = nets["encoder"](views)
        z_a, z_b = nets["instance_head"](h).chunk(2)
        c_a, c_b = nets["cluster_head"](h).softmax(dim=1).chunk(2)
        with torch.no_grad():
            target_h = nets["target_encoder"](views)
            target_z_a, target_z_b = nets["target_instance_head"](target_h).chunk(2)
            target_c_a, target_c_b = nets["target_cluster_head"](target_h).softmax(dim=1).chunk(2)
        instance = instance_loss([(z_a, target_z_b), (target_z_a, z_b)], self.config)
        cluster = cluster_loss([(c_a, target_c_b), (target_c_a, c_b)], self.config)
        entropy, share = entropies(c_a, c_b)
        return {
            "loss": instance + cluster - self.config.entropy_weight * entropy,
            "instance_loss": instance,
            "cluster_loss": cluster,
            ENTROPY: share,
        }

    def after_step(self, nets: nn.ModuleDict, ctx: Context) -> None:
        for name in ONLINE:
            update_ema(nets[f"target_{name}"], nets[name], self.config.ema)

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        return remember_entropy(super().server_step(server, aggregate, ctx), aggregate.metrics)

    def round_notes(self, before: Payload, after: Payload) -> Sequence[str]:
        return collapse_notes(before, after, self.config.collapse_threshold)

    def cluster_model(self, server: Payload) -> nn.Module:
        nets = self.build_networks()
        for name in ("encoder", "cluster_head"):
            load_state(nets[name], server.groups[name])
        return nn.Sequential(nets["encoder"], nets["cluster_head"]).eval()
