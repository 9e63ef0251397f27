"""FedU: BYOL on every client, and a predictor that stays at home where the models have drifted apart.

Zhuang et al., "Collaborative Unsupervised Visual Representation Learning from Decentralized Data" (ICCV 2021). A client
takes the global online networks, but keeps its own predictor when the global encoder is far from the one it trained last
("divergence-aware predictor update"). Its last encoder, its predictor and its target networks stay with it from one
participation to the next.
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
from unisono.models.nets import add_targets, update_ema

FOLLOWED = ("encoder", "projector")
"""The networks that have a target."""
KEPT = ("encoder", "predictor", "target_encoder", "target_projector")
"""What a client remembers."""


class FedUConfig(Section):
    """Options of FedU; at the paper's scale hidden_dim is 4096 and projection_dim 2048."""

    divergence_threshold: float = Field(0.4, ge=0, description="below it a client takes the global predictor, else its own")
    ema: float = Field(0.99, ge=0, le=1, description="momentum of the target networks")
    hidden_dim: int = Field(1024, ge=1, description="hidden width of projector and predictor")
    projection_dim: int = Field(512, ge=1, description="width of their outputs")


@register("fedu")
class FedU(LocalTraining[FedUConfig]):
    """BYOL whose clients keep their own predictor when the global encoder has moved far from theirs."""

    Config = FedUConfig
    defaults = {
        "training": {"learning_rate": 0.032, "schedule": "cosine", "weight_decay": 5e-4},
        "views": {"preset": "byol"},
    }
    shared_networks = ("encoder", "projector", "predictor")

    def build_networks(self) -> nn.ModuleDict:
        hidden, width, norm = self.config.hidden_dim, self.config.projection_dim, self.model.norm
        encoder = self.backbone()
        nets = {
            "encoder": encoder,
            "projector": mlp([encoder.feature_dim, hidden, width], norm=norm),
            "predictor": mlp([width, hidden, width], norm=norm),
        }
        return add_targets(nn.ModuleDict(nets), FOLLOWED)

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        load_own_targets(nets, FOLLOWED, received, local)

        def train(start: Payload) -> Update:
            return self.train(nets, start, data, ctx, lambda batch, generator: self.loss(nets, batch, generator))

        return train_with_own_predictor(train, nets, received, local, self.config.divergence_threshold, KEPT)

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        p_a, p_b = nets["predictor"](nets["projector"](nets["encoder"](views))).chunk(2)
        with torch.no_grad():
            t_a, t_b = nets["target_projector"](nets["target_encoder"](views)).chunk(2)
        return {"loss": 0.5 * (byol_regression(p_a, t_b) + byol_regression(p_b, t_a))}

    def after_step(self, nets: nn.ModuleDict, ctx: Context) -> None:
        for name in FOLLOWED:
            update_ema(nets[f"target_{name}"], nets[name], self.config.ema)
