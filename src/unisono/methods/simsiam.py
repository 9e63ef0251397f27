"""Federated SimSiam: a predictor on one branch, a stopped gradient on the other; alone or with user verification and labels.

Chen & He, "Exploring Simple Siamese Representation Learning" (CVPR 2021), as the baseline of
Lubana et al., "Orchestra" (ICML 2022) and, with ``projector = "two-layer"``, ``uv_weight`` and ``label_weight``, of
Louizos et al., "A Mutual Information Perspective on Federated Contrastive Learning" (ICLR 2024).
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import nn

from unisono.core.method import register
from unisono.core.payload import Payload
from unisono.losses.siamese import negative_cosine
from unisono.methods.local_training import Batch, LossTerms, Start
from unisono.methods.personal_predictor import start_across_silos
from unisono.methods.two_views import Rows, TwoViewConfig, TwoViews
from unisono.models.heads import mlp


class SimSiamConfig(TwoViewConfig):
    """Options of SimSiam."""

    projector: Literal["three-layer", "two-layer"] = Field(
        "three-layer", description="three-layer: with a normalised output (Chen & He); two-layer: plain output (Louizos et al.)"
    )
    projection_dim: int = Field(512, ge=1, description="width of the projector's output")
    hidden_dim: int | None = Field(None, ge=1, description="hidden width of the projector; default projection_dim")
    bottleneck_dim: int = Field(128, ge=1, description="hidden width of the predictor")
    divergence_threshold: float | None = Field(
        None, ge=0, description="cross-silo (0.4 in FedU): from it on clients keep their own predictor; unset: no state"
    )


@register("simsiam")
class SimSiam(TwoViews[SimSiamConfig]):
    """Each view predicts the projection of the other; no negatives."""

    Config = SimSiamConfig
    defaults = {"training": {"learning_rate": 0.01}}

    @property
    def shared_networks(self) -> tuple[str, ...]:
        return ("encoder", "projector", "predictor", *self.head_names)

    @property
    def personal_networks(self) -> tuple[str, ...]:
        return () if self.config.divergence_threshold is None else ("encoder", "predictor")

    def build_networks(self) -> nn.ModuleDict:
        encoder, config, norm = self.backbone(), self.config, self.model.norm
        width, hidden = config.projection_dim, config.hidden_dim or config.projection_dim
        deep = config.projector == "three-layer"
        dims = [encoder.feature_dim, hidden, hidden, width] if deep else [encoder.feature_dim, hidden, width]
        return self.with_heads(
            nn.ModuleDict(
                {
                    "encoder": encoder,
                    "projector": mlp(dims, norm=norm, last_norm=deep),
                    "predictor": mlp([width, config.bottleneck_dim, width], norm=norm),
                }
            )
        )

    def start_from(self, received: Payload, local: Payload) -> Start:
        threshold = self.config.divergence_threshold
        return Start(received) if threshold is None else start_across_silos(received, local, threshold)

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        h = self.pass_views(nets["encoder"], views)
        z = self.pass_views(nets["projector"], h)
        z_1, z_2 = z.chunk(2)
        p_1, p_2 = self.pass_views(nets["predictor"], z).chunk(2)

        def predict(rows: Rows) -> torch.Tensor:
            return 0.5 * (negative_cosine(p_1[rows], z_2[rows]) + negative_cosine(p_2[rows], z_1[rows]))

        return self.total_loss(nets, h, batch.labels, predict)
