"""Contrastive clustering, centralised with one client and federated ("Fed + CC") with many.

Li et al., "Contrastive Clustering" (AAAI 2021), as section II-A of Miao & Koyuncu, "Federated Momentum Contrastive
Clustering". The entropy of the mean assignment is maximised; the plus sign before it in the latter's Eq. 2 is a slip.
"""

from __future__ import annotations

import torch
from torch import nn

from unisono.core.method import register
from unisono.methods.cluster_heads import ENTROPY, ClusterHeads, ClusterHeadsConfig, cluster_loss, entropies, instance_loss
from unisono.methods.local_training import Batch, LossTerms


class CCConfig(ClusterHeadsConfig):
    """Options of contrastive clustering."""


@register("cc")
class CC(ClusterHeads[CCConfig]):
    """Contrastive clustering: views of a sample share its projection, views of a batch share its clusters."""

    Config = CCConfig
    instance_pass = True
    shared_networks = ("encoder", "instance_head", "cluster_head")

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        h = self.pass_views(nets["encoder"], torch.cat(self.views.pair(batch.x, generator)))
        z_a, z_b = nets["instance_head"](h).chunk(2)
        # The mean of ntxent over its anchors on both sides is half of the sides' sum; Eq. 2 halves its only side.
        half = 0.5 if self.config.contrast == "paper" else 1.0
        instance = instance_loss([(z_a, z_b)], self.config)
        if batch.instance_only:
            return {"loss": half * instance, "instance_loss": instance}
        c_a, c_b = nets["cluster_head"](h).softmax(dim=1).chunk(2)
        cluster = cluster_loss([(c_a, c_b)], self.config)
        entropy, share = entropies(c_a, c_b)
        return {
            "loss": half * (instance + cluster) - self.config.entropy_weight * entropy,
            "instance_loss": instance,
            "cluster_loss": cluster,
            ENTROPY: share,
        }
