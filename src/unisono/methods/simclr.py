"""Federated SimCLR: a contrastive loss on every client, alone or with user verification and labels.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (ICML 2020), as the baseline of
Lubana et al., "Orchestra" (ICML 2022): an MLP projector, both views as anchors, temperature 0.1.

With ``loss = "info-nce"`` it is the local SimCLR of Louizos et al., "A Mutual Information Perspective on Federated
Contrastive Learning" (ICLR 2024), Eq. 3; with ``uv_weight = 1`` their federated SimCLR, Eq. 6; with ``label_weight = 1`` the
semi-supervised forms, Eq. 12 and 13.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from unisono.core.method import register
from unisono.losses.contrastive import info_nce, nt_xent
from unisono.methods.two_views import ProjectedViewConfig, ProjectedViews


class SimCLRConfig(ProjectedViewConfig):
    """Options of SimCLR."""

    loss: Literal["nt-xent", "info-nce"] = Field(
        "nt-xent", description="nt-xent: both views are anchors; info-nce: every second view against all first views"
    )
    temperature: float = Field(0.1, gt=0, description="divides the cosine similarities")


@register("simclr")
class SimCLR(ProjectedViews[SimCLRConfig]):
    """Two views of a sample attract, all other samples of the client's batch repel."""

    Config = SimCLRConfig

    def contrast(self, z_1: Tensor, z_2: Tensor) -> Tensor:
        return (info_nce if self.config.loss == "info-nce" else nt_xent)(z_1, z_2, self.config.temperature)

    @property
    def has_critic(self) -> bool:
        return self.verifies or self.config.loss == "info-nce"

    def critic(self, z_1: Tensor, z_2: Tensor) -> Tensor:
        return F.normalize(z_1.float(), dim=1) @ F.normalize(z_2.float(), dim=1).T / self.config.temperature
