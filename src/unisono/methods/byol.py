"""Federated BYOL: an online network predicts a slowly moving target.

Grill et al., "Bootstrap Your Own Latent" (NeurIPS 2020), as the baseline of Lubana et al., "Orchestra" (ICML 2022).
The moving average is ``target = m * target + (1 - m) * online``; Orchestra's public code has it inverted. Across silos, with
``divergence_threshold``, clients keep their targets and follow FedU's rule about the predictor.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.method import register
from unisono.core.payload import Payload, Update
from unisono.losses.siamese import byol_regression
from unisono.methods.local_training import Batch, LocalTraining, LossTerms
from unisono.methods.own_predictor import load_own_targets, train_with_own_predictor
from unisono.models.heads import mlp
from unisono.models.nets import freeze, update_ema

ONLINE = ("encoder", "projector", "predictor")
TARGETS = ("target_encoder", "target_projector")


class BYOLConfig(Section):
    """Options of BYOL."""

    ema: float = Field(0.996, ge=0, le=1, description="momentum of the target networks")
    hidden_dim: int = Field(1024, ge=1, description="hidden width of projector and predictor")
    projection_dim: int = Field(512, ge=1, description="width of their outputs")
    divergence_threshold: float | None = Field(
        None, ge=0, description="cross-silo (0.4 in FedU): from it on clients keep their own predictor; unset: no state"
    )


@register("byol")
class BYOL(LocalTraining[BYOLConfig]):
    """The online view predicts the target's projection of the other view; online and target networks are averaged."""

    Config = BYOLConfig
    defaults = {"training": {"learning_rate": 0.01}, "views": {"preset": "byol"}}

    @property
    def shared_networks(self) -> tuple[str, ...]:
        return ONLINE if self.config.divergence_threshold is not None else (*ONLINE, *TARGETS)

    def build_networks(self) -> nn.ModuleDict:
        nets = nn.ModuleDict()
        hidden, width, norm = self.config.hidden_dim, self.config.projection_dim, self.model.norm
        for prefix in ("", "target_"):
            encoder = self.backbone()
            nets[prefix + "encoder"] = encoder
            nets[prefix + "projector"] = mlp([encoder.feature_dim, hidden, width], norm=norm)
        nets["predictor"] = mlp([width, hidden, width], norm=norm)
        for name in ("encoder", "projector"):
            nets["target_" + name].load_state_dict(nets[name].state_dict())
            freeze(nets["target_" + name])
        return nets

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        threshold = self.config.divergence_threshold
        if threshold is None:
            return super().client_step(nets, received, local, data, ctx)
        load_own_targets(nets, ("encoder", "projector"), received, local)

        def train(start: Payload) -> Update:
            return self.train(nets, start, data, ctx, lambda batch, generator: self.loss(nets, batch, generator))

        return train_with_own_predictor(train, nets, received, local, threshold, ("encoder", "predictor", *TARGETS))

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        p_a, p_b = nets["predictor"](nets["projector"](nets["encoder"](views))).chunk(2)
        with torch.no_grad():
            t_a, t_b = nets["target_projector"](nets["target_encoder"](views)).chunk(2)
        return {"loss": 0.5 * (byol_regression(p_a, t_b) + byol_regression(p_b, t_a))}

    def after_step(self, nets: nn.ModuleDict, ctx: Context) -> None:
        for name in ("encoder", "projector"):
            update_ema(nets["target_" + name], nets[name], self.config.ema)
