"""Momentum contrastive clustering, centralised with one client; with many it is the joint loss that FedMCC takes apart.

Miao & Koyuncu, "Federated Momentum Contrastive Clustering", section II-B. Both views pass through the online and the
target networks; each online output meets the target output of the other view. The entropies of the online assignments are
maximised (the plus signs in Eq. 6 are slips); those of the target have no gradient and are left out.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from unisono.core.method import register
from unisono.methods.cluster_heads import ENTROPY, ClusterHeads, ClusterHeadsConfig, cluster_loss, entropies, instance_loss
from unisono.methods.local_training import Batch, LossTerms
from unisono.models.nets import add_targets

ONLINE = ("encoder", "instance_head", "cluster_head")
TARGETS = {f"target_{name}": name for name in ONLINE}


class MCCConfig(ClusterHeadsConfig):
    """Options of momentum contrastive clustering."""

    ema: float = Field(0.99, ge=0, le=1, description="momentum of the target networks")


@register("mcc")
class MCC(ClusterHeads[MCCConfig]):
    """Momentum contrastive clustering: each view's online outputs meet the target's outputs of the other view."""

    Config = MCCConfig
    instance_pass = True
    shared_networks = (*ONLINE, *TARGETS)
    target_networks = TARGETS

    def build_networks(self) -> nn.ModuleDict:
        return add_targets(super().build_networks(), ONLINE)

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        h = self.pass_views(nets["encoder"], views)
        z_a, z_b = nets["instance_head"](h).chunk(2)
        with torch.no_grad():
            target_h = self.pass_views(nets["target_encoder"], views)
            target_z_a, target_z_b = nets["target_instance_head"](target_h).chunk(2)
        instance = instance_loss([(z_a, target_z_b), (target_z_a, z_b)], self.config)
        if batch.instance_only:
            return {"loss": instance, "instance_loss": instance}
        c_a, c_b = nets["cluster_head"](h).softmax(dim=1).chunk(2)
        with torch.no_grad():
            target_c_a, target_c_b = nets["target_cluster_head"](target_h).softmax(dim=1).chunk(2)
        cluster = cluster_loss([(c_a, target_c_b), (target_c_a, c_b)], self.config)
        entropy, share = entropies(c_a, c_b)
        return {
            "loss": instance + cluster - self.config.entropy_weight * entropy,
            "instance_loss": instance,
            "cluster_loss": cluster,
            ENTROPY: share,
        }
