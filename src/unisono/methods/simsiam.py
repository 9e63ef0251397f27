"""Federated SimSiam: a predictor on one branch, a stopped gradient on the other.

Chen & He, "Exploring Simple Siamese Representation Learning" (CVPR 2021), as the baseline of
Lubana et al., "Orchestra" (ICML 2022).
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from unisono.core.config import Section
from unisono.core.method import Setting, register
from unisono.losses.siamese import negative_cosine
from unisono.methods.local_training import Batch, LocalTraining, Terms
from unisono.models.heads import mlp


class SimSiamConfig(Section):
    """Options of SimSiam."""

    projection_dim: int = Field(512, ge=1, description="width of the projector and of its output")
    bottleneck_dim: int = Field(128, ge=1, description="hidden width of the predictor")


@register("simsiam")
class SimSiam(LocalTraining):
    """Each view predicts the projection of the other; no negatives."""

    Config = SimSiamConfig
    defaults = {"training": {"learning_rate": 0.01}}
    network_names = ("encoder", "projector", "predictor")

    def __init__(self, config: SimSiamConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.config = config

    def build(self) -> nn.ModuleDict:
        encoder = self.backbone()
        width, bottleneck = self.config.projection_dim, self.config.bottleneck_dim
        return nn.ModuleDict(
            {
                "encoder": encoder,
                "projector": mlp([encoder.feature_dim, width, width, width], norm=self.model.norm, last_norm=True),
                "predictor": mlp([width, bottleneck, width], norm=self.model.norm),
            }
        )

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Terms:
        views = torch.cat(self.views.pair(batch.x, generator))
        z = nets["projector"](nets["encoder"](views))
        z_a, z_b = z.chunk(2)
        p_a, p_b = nets["predictor"](z).chunk(2)
        return {"loss": 0.5 * (negative_cosine(p_a, z_b) + negative_cosine(p_b, z_a))}
