"""Federated SimCLR: a contrastive loss on every client, alone or with user verification and labels.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (ICML 2020), as the baseline of
Lubana et al., "Orchestra" (ICML 2022): an MLP projector, both views as anchors, temperature 0.1.

With ``loss = "info-nce"`` it is the local SimCLR of Louizos et al., "A Mutual Information Perspective on Federated
Contrastive Learning" (ICLR 2024), Eq. 3; with ``uv_weight = 1`` their federated SimCLR, Eq. 6; with ``label_weight = 1`` the
semi-supervised forms, Eq. 12 and 13.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from unisono.core.method import register
from unisono.losses.contrastive import info_nce, nt_xent
from unisono.methods.local_training import Batch, LossTerms
from unisono.methods.two_views import TwoViewConfig, combine
from unisono.methods.user_verification import UserVerified
from unisono.models.heads import mlp


class SimCLRConfig(TwoViewConfig):
    """Options of SimCLR."""

    loss: Literal["nt-xent", "info-nce"] = Field(
        "nt-xent", description="nt-xent: both views are anchors; info-nce: every second view against all first views"
    )
    temperature: float = Field(0.1, gt=0, description="divides the cosine similarities")
    projection_dim: int = Field(512, ge=1, description="width of the projector's output")
    hidden_dim: int | None = Field(None, ge=1, description="hidden width of the projector; default projection_dim")
    projector_norm: bool = Field(True, description="normalise the projector's hidden layer, as model.norm says")


@register("simclr")
class SimCLR(UserVerified[SimCLRConfig]):
    """Two views of a sample attract, all other samples of the client's batch repel."""

    Config = SimCLRConfig
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
        contrast = info_nce if self.config.loss == "info-nce" else nt_xent
        measured = self.verifies or self.config.loss == "info-nce"
        return combine(
            self,
            self.config,
            nets,
            h,
            batch.labels,
            lambda rows: contrast(z_1[rows], z_2[rows], self.config.temperature),
            (lambda rows: self._critic(z_1[rows], z_2[rows])) if measured else None,
        )

    def _critic(self, z_1: Tensor, z_2: Tensor) -> Tensor:
        return F.normalize(z_1.float(), dim=1) @ F.normalize(z_2.float(), dim=1).T / self.config.temperature
