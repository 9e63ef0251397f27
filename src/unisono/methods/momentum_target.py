"""The template of BYOL and what follows from it: an online network predicts a slowly moving target.

Grill et al., "Bootstrap Your Own Latent" (NeurIPS 2020). The moving average is ``target = m * target + (1 - m) * online``;
Orchestra's public code has it inverted. BYOL, FedU and FedEMA differ in what clients keep and start from.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import nn
from typing_extensions import TypeVar

from unisono.core.config import Section
from unisono.losses.siamese import symmetric_byol_regression
from unisono.methods.local_training import Batch, LocalTraining, LossTerms
from unisono.models.heads import mlp
from unisono.models.nets import add_targets

ONLINE = ("encoder", "projector", "predictor")
TARGETS = {"target_encoder": "encoder", "target_projector": "projector"}


class MomentumTargetConfig(Section):
    """Options of methods with an online and a target network."""

    ema: float = Field(0.99, ge=0, le=1, description="momentum of the target networks")
    hidden_dim: int = Field(1024, ge=1, description="hidden width of projector and predictor")
    projection_dim: int = Field(512, ge=1, description="width of their outputs")


T = TypeVar("T", bound=MomentumTargetConfig, default=Any)


class MomentumTarget(LocalTraining[T]):
    """Template: the online view predicts the target's projection of the other view."""

    target_networks = TARGETS
    loss_weight: ClassVar[float] = 0.5
    """Factor of the sum of both directions: one half is their mean, as one network's output meets one target's."""

    @property
    def shared_networks(self) -> tuple[str, ...]:
        return ONLINE

    def build_networks(self) -> nn.ModuleDict:
        return add_targets(nn.ModuleDict({**self.make_projection(), **self.make_predictor()}), tuple(TARGETS.values()))

    def make_projection(self) -> dict[str, nn.Module]:
        """Return a new encoder and projector."""
        encoder, config = self.backbone(), self.config
        projector = mlp([encoder.feature_dim, config.hidden_dim, config.projection_dim], norm=self.model.norm)
        return {"encoder": encoder, "projector": projector}

    def make_predictor(self) -> dict[str, nn.Module]:
        """Return a new predictor."""
        width = self.config.projection_dim
        return {"predictor": mlp([width, self.config.hidden_dim, width], norm=self.model.norm)}

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        projected = self.pass_views(nets["projector"], self.pass_views(nets["encoder"], views))
        p_a, p_b = self.pass_views(nets["predictor"], projected).chunk(2)
        with torch.no_grad():
            t_a, t_b = self.pass_views(nets["target_projector"], self.pass_views(nets["target_encoder"], views)).chunk(2)
        return {"loss": self.loss_weight * symmetric_byol_regression(p_a, p_b, t_a, t_b)}
