"""Federated spectral contrastive learning.

HaoChen et al., "Provable Guarantees for Self-Supervised Deep Learning with Spectral Contrastive Loss" (NeurIPS 2021), as the
baseline of Lubana et al., "Orchestra" (ICML 2022).
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from unisono.core.config import Section
from unisono.core.method import Setting, register
from unisono.losses.contrastive import spectral_contrastive
from unisono.methods.local_training import Batch, LocalTraining, Terms
from unisono.models.heads import mlp


class SpecLossConfig(Section):
    """Options of SpecLoss."""

    mu: float = Field(1.0, gt=0, description="squared norm at which projections are clipped")
    projection_dim: int = Field(512, ge=1, description="width of the projector and of its output")


@register("specloss")
class SpecLoss(LocalTraining):
    """Inner products of two views grow, squared inner products of different samples shrink."""

    Config = SpecLossConfig
    network_names = ("encoder", "projector")
    min_batch = 2

    def __init__(self, config: SpecLossConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.config = config

    def build(self) -> nn.ModuleDict:
        encoder = self.backbone()
        width = self.config.projection_dim
        projector = mlp([encoder.feature_dim, width, width], norm=self.model.norm)
        return nn.ModuleDict({"encoder": encoder, "projector": projector})

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Terms:
        views = torch.cat(self.views.pair(batch.x, generator))
        z_1, z_2 = nets["projector"](nets["encoder"](views)).chunk(2)
        return {"loss": spectral_contrastive(z_1, z_2, self.config.mu)}
