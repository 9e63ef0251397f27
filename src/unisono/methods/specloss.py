"""Federated spectral contrastive learning, alone or with user verification and labels.

HaoChen et al., "Provable Guarantees for Self-Supervised Deep Learning with Spectral Contrastive Loss" (NeurIPS 2021), as the
baseline of Lubana et al., "Orchestra" (ICML 2022) and, with ``uv_weight`` and ``label_weight``, of Louizos et al., "A Mutual
Information Perspective on Federated Contrastive Learning" (ICLR 2024).
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from unisono.core.method import register
from unisono.losses.contrastive import spectral_contrastive
from unisono.methods.local_training import Batch, LossTerms
from unisono.methods.two_views import TwoViewConfig, combine
from unisono.methods.user_verification import UserVerified
from unisono.models.heads import mlp


class SpecLossConfig(TwoViewConfig):
    """Options of SpecLoss."""

    mu: float = Field(1.0, gt=0, description="squared norm at which projections are clipped")
    projection_dim: int = Field(512, ge=1, description="width of the projector's output")
    hidden_dim: int | None = Field(None, ge=1, description="hidden width of the projector; default projection_dim")
    projector_norm: bool = Field(True, description="normalise the projector's hidden layer, as model.norm says")


@register("specloss")
class SpecLoss(UserVerified[SpecLossConfig]):
    """Inner products of two views grow, squared inner products of different samples shrink."""

    Config = SpecLossConfig
    min_batch_size = 2

    def setup(self) -> None:
        super().setup()
        self.needs_labels = self.config.label_weight > 0

    @property
    def shared_networks(self) -> tuple[str, ...]:
        return ("encoder", "projector", *self.head_names)

    def build_networks(self) -> nn.ModuleDict:
        encoder, config = self.backbone(), self.config
        dims = [encoder.feature_dim, config.hidden_dim or config.projection_dim, config.projection_dim]
        projector = mlp(dims, norm=self.model.norm if config.projector_norm else None)
        return self.with_heads(nn.ModuleDict({"encoder": encoder, "projector": projector}))

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        h = nets["encoder"](views)
        z_1, z_2 = nets["projector"](h).chunk(2)
        return combine(
            self,
            self.config,
            nets,
            h,
            batch.labels,
            lambda rows: spectral_contrastive(z_1[rows], z_2[rows], self.config.mu),
        )
