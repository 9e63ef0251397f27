"""FedEMA: BYOL on clients that start from a mixture of the global model and their own, by how far they have drifted apart.

Zhuang et al., "Divergence-aware Federated Self-Supervised Learning" (ICLR 2022). With d the divergence of the global
encoder from the one a client trained last, the client starts from mu * own + (1 - mu) * global, mu = min(lambda * d, 1).
The autoscaler sets lambda = tau / d once, at the first divergence that a client measures. A client that has not trained
before takes the global model.
"""

from __future__ import annotations

from dataclasses import replace

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
from unisono.models.heads import mlp
from unisono.models.nets import add_targets, get_state, load_state, mix_states, update_ema, weight_divergence

ONLINE = ("encoder", "projector", "predictor")
FOLLOWED = ("encoder", "projector")
"""The networks that have a target."""


class FedEMAConfig(Section):
    """Options of FedEMA; at the paper's scale hidden_dim is 4096 and projection_dim 2048."""

    divergence_scale: float | None = Field(None, ge=0, description="lambda, the same for all clients; unset: the autoscaler's")
    autoscaler_tau: float = Field(0.7, ge=0, le=1, description="tau: the weight of its own model that a client begins with")
    ema: float = Field(0.99, ge=0, le=1, description="momentum of the target networks")
    hidden_dim: int = Field(1024, ge=1, description="hidden width of projector and predictor")
    projection_dim: int = Field(512, ge=1, description="width of their outputs")


@register("fedema")
class FedEMA(LocalTraining[FedEMAConfig]):
    """BYOL whose clients mix the global model with their own, the more of their own the further they have drifted apart."""

    Config = FedEMAConfig
    defaults = {
        "training": {"learning_rate": 0.032, "schedule": "cosine", "weight_decay": 5e-4},
        "views": {"preset": "byol"},
    }
    shared_networks = ONLINE

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
        for name in FOLLOWED:
            target = f"target_{name}"
            load_state(nets[target], local.groups[target] if local.groups else received.groups[name])
        start, scalars, metrics = received, dict(local.scalars), {}
        if local.groups:
            divergence = weight_divergence(received.groups["encoder"], local.groups["encoder"])
            scale = self._scale(local, divergence)
            own_weight = min(scale * divergence, 1.0)
            # A divergence of 0, as of a client that is alone, tells nothing about the scale of later ones.
            scalars = {"scale": scale} if divergence > 0 else scalars
            metrics = {"divergence": divergence, "own_weight": own_weight}
            start = Payload({name: mix_states(local.groups[name], received.groups[name], own_weight) for name in ONLINE})
        update = self.train(nets, start, data, ctx, lambda batch, generator: self.loss(nets, batch, generator))
        update = replace(update, metrics={**update.metrics, **metrics})
        kept = {name: get_state(nets[name]) for name in (*ONLINE, *(f"target_{name}" for name in FOLLOWED))}
        return update, Payload(kept, scalars)

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        p_a, p_b = nets["predictor"](nets["projector"](nets["encoder"](views))).chunk(2)
        with torch.no_grad():
            t_a, t_b = nets["target_projector"](nets["target_encoder"](views)).chunk(2)
        return {"loss": 0.5 * (byol_regression(p_a, t_b) + byol_regression(p_b, t_a))}

    def after_step(self, nets: nn.ModuleDict, ctx: Context) -> None:
        for name in FOLLOWED:
            update_ema(nets[f"target_{name}"], nets[name], self.config.ema)

    def _scale(self, local: Payload, divergence: float) -> float:
        """Lambda: that of the config, the one this client has found before, or tau over its first divergence."""
        if self.config.divergence_scale is not None:
            return self.config.divergence_scale
        known = local.scalars.get("scale")
        if known is not None:
            return float(known)
        return self.config.autoscaler_tau / divergence if divergence > 0 else 0.0
