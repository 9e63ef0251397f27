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

from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.method import register
from unisono.core.payload import Payload, Update
from unisono.losses.siamese import negative_cosine
from unisono.methods.local_training import Batch, LossTerms
from unisono.methods.own_predictor import train_with_own_predictor
from unisono.methods.two_views import Rows, TwoViewConfig, combine
from unisono.methods.user_verification import UserVerified
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
class SimSiam(UserVerified[SimSiamConfig]):
    """Each view predicts the projection of the other; no negatives."""

    Config = SimSiamConfig
    defaults = {"training": {"learning_rate": 0.01}}

    def setup(self) -> None:
        super().setup()
        self.needs_labels = self.config.label_weight > 0

    @property
    def shared_networks(self) -> tuple[str, ...]:
        return ("encoder", "projector", "predictor", *self.head_names)

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

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        threshold = self.config.divergence_threshold
        if threshold is None:
            return super().client_step(nets, received, local, data, ctx)

        def train(start: Payload) -> Update:
            return self.train(nets, start, data, ctx, lambda batch, generator: self.loss(nets, batch, generator))

        return train_with_own_predictor(train, nets, received, local, threshold, ("encoder", "predictor"))

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        h = nets["encoder"](views)
        z = nets["projector"](h)
        z_1, z_2 = z.chunk(2)
        p_1, p_2 = nets["predictor"](z).chunk(2)

        def predict(rows: Rows) -> torch.Tensor:
            return 0.5 * (negative_cosine(p_1[rows], z_2[rows]) + negative_cosine(p_2[rows], z_1[rows]))

        return combine(self, self.config, nets, h, batch.labels, predict)
