"""Federated spectral contrastive learning, alone or with user verification and labels.

HaoChen et al., "Provable Guarantees for Self-Supervised Deep Learning with Spectral Contrastive Loss" (NeurIPS 2021), as the
baseline of Lubana et al., "Orchestra" (ICML 2022) and, with ``uv_weight`` and ``label_weight``, of Louizos et al., "A Mutual
Information Perspective on Federated Contrastive Learning" (ICLR 2024).
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from unisono.core.method import register
from unisono.losses.contrastive import spectral_contrastive
from unisono.methods.two_views import ProjectedViewConfig, ProjectedViews


class SpecLossConfig(ProjectedViewConfig):
    """Options of SpecLoss."""

    mu: float = Field(1.0, gt=0, description="squared norm at which projections are clipped")
    num_scores: int | None = Field(
        None,
        ge=1,
        description="width of a linear layer on projections of unit norm, whose outputs are compared by their cosines, as in "
        "Orchestra's public code; unset: the clipped projections are compared",
    )


@register("specloss")
class SpecLoss(ProjectedViews[SpecLossConfig]):
    """Inner products of two views grow, squared inner products of different samples shrink."""

    Config = SpecLossConfig

    @property
    def shared_networks(self) -> tuple[str, ...]:
        return (*super().shared_networks, *(("score_head",) if self.config.num_scores else ()))

    def build_networks(self) -> nn.ModuleDict:
        nets = super().build_networks()
        if self.config.num_scores:
            nets["score_head"] = nn.Linear(self.config.projection_dim, self.config.num_scores)
        return nets

    def compared(self, nets: nn.ModuleDict, projections: Tensor) -> Tensor:
        if not self.config.num_scores:
            return projections
        return F.normalize(nets["score_head"](F.normalize(projections, dim=1)), dim=1)

    def contrast(self, z_1: Tensor, z_2: Tensor) -> Tensor:
        return spectral_contrastive(z_1, z_2, 1.0 if self.config.num_scores else self.config.mu)
