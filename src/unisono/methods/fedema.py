"""FedEMA: BYOL on clients that start from a mixture of the global model and their own, by how far they have drifted apart.

Zhuang et al., "Divergence-aware Federated Self-Supervised Learning" (ICLR 2022). With d the divergence of the global
encoder from the one a client trained last, the client starts from mu * own + (1 - mu) * global, mu = min(lambda * d, 1).
The autoscaler sets lambda = tau / d once, at the first divergence that a client measures. A client that has not trained
before takes the global model.
"""

from __future__ import annotations

from pydantic import Field

from unisono.core.method import register
from unisono.core.payload import Payload
from unisono.methods.local_training import Start
from unisono.methods.momentum_target import ONLINE, TARGETS, MomentumTarget, MomentumTargetConfig
from unisono.models.nets import mix_states, weight_divergence


class FedEMAConfig(MomentumTargetConfig):
    """Options of FedEMA; at the paper's scale hidden_dim is 4096 and projection_dim 2048."""

    divergence_scale: float | None = Field(None, ge=0, description="lambda, the same for all clients; unset: the autoscaler's")
    autoscaler_tau: float = Field(0.7, ge=0, le=1, description="tau: the weight of its own model that a client begins with")


@register("fedema")
class FedEMA(MomentumTarget[FedEMAConfig]):
    """BYOL whose clients mix the global model with their own, the more of their own the further they have drifted apart."""

    Config = FedEMAConfig
    defaults = {
        "training": {"learning_rate": 0.032, "schedule": "cosine", "weight_decay": 5e-4},
        "views": {"preset": "easyfl"},
    }
    personal_networks = (*ONLINE, *TARGETS)

    def start_from(self, received: Payload, local: Payload) -> Start:
        if not local.groups:
            return Start(received)
        divergence = weight_divergence(received.groups["encoder"], local.groups["encoder"])
        scale = self._scale(local, divergence)
        own_weight = min(scale * divergence, 1.0)
        mixed = Payload({name: mix_states(local.groups[name], received.groups[name], own_weight) for name in ONLINE})
        # A divergence of 0, as of a client that is alone, tells nothing about the scale of later ones.
        scalars = {"scale": scale} if divergence > 0 else local.scalars
        return Start(mixed, {"divergence": divergence, "own_weight": own_weight}, scalars)

    def _scale(self, local: Payload, divergence: float) -> float:
        """Return lambda: that of the config, the one this client has found before, or tau over its first divergence."""
        if self.config.divergence_scale is not None:
            return self.config.divergence_scale
        known = local.scalars.get("scale")
        if known is not None:
            return float(known)
        return self.config.autoscaler_tau / divergence if divergence > 0 else 0.0
