"""Federated spectral contrastive learning, alone or with user verification and labels.

HaoChen et al., "Provable Guarantees for Self-Supervised Deep Learning with Spectral Contrastive Loss" (NeurIPS 2021), as the
baseline of Lubana et al., "Orchestra" (ICML 2022) and, with ``uv_weight`` and ``label_weight``, of Louizos et al., "A Mutual
Information Perspective on Federated Contrastive Learning" (ICLR 2024).
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from unisono.core.method import register
from unisono.losses.contrastive import spectral_contrastive
from unisono.methods.two_views import ProjectedViewConfig, ProjectedViews


class SpecLossConfig(ProjectedViewConfig):
    """Options of SpecLoss."""

    mu: float = Field(1.0, gt=0, description="squared norm at which projections are clipped")


@register("specloss")
class SpecLoss(ProjectedViews[SpecLossConfig]):
    """Inner products of two views grow, squared inner products of different samples shrink."""

    Config = SpecLossConfig

    def contrast(self, z_1: Tensor, z_2: Tensor) -> Tensor:
        return spectral_contrastive(z_1, z_2, self.config.mu)
