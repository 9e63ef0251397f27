"""Federated rotation prediction.

Gidaris et al., "Unsupervised Representation Learning by Predicting Image Rotations" (ICLR 2018), as the baseline of
Lubana et al., "Orchestra" (ICML 2022).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from unisono.core.config import Section
from unisono.core.errors import UserError
from unisono.core.method import register
from unisono.data.views import rotate_quarter_turns
from unisono.methods.local_training import Batch, LocalTraining, LossTerms
from unisono.models.heads import mlp


class RotPredConfig(Section):
    """Options of RotPred."""

    projection_dim: int = Field(512, ge=1, description="width of the projector and of its output")
    last_norm: bool = Field(True, description="normalise the projector's output too, without scale and shift")


@register("rotpred")
class RotPred(LocalTraining[RotPredConfig]):
    """Classifier of the multiple of 90 degrees by which a view was rotated."""

    Config = RotPredConfig
    shared_networks = ("encoder", "projector", "rotation_head")

    def setup(self) -> None:
        super().setup()
        if len(self.info.input_shape) != 3:
            raise UserError(f"method 'rotpred' needs images, and the samples have shape {self.info.input_shape}.")

    def build_networks(self) -> nn.ModuleDict:
        encoder = self.backbone()
        width = self.config.projection_dim
        return nn.ModuleDict(
            {
                "encoder": encoder,
                "projector": mlp([encoder.feature_dim, width, width], norm=self.model.norm, last_norm=self.config.last_norm),
                "rotation_head": nn.Linear(width, 4),
            }
        )

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        turns = torch.randint(4, (len(batch),), generator=generator, device=batch.x.device)
        rotated = rotate_quarter_turns(self.views.first(batch.x, generator), turns)
        logits = nets["rotation_head"](nets["projector"](nets["encoder"](rotated)))
        accuracy = (logits.argmax(dim=1) == turns).float().mean()
        return {"loss": F.cross_entropy(logits, turns), "rotation_accuracy": accuracy}
