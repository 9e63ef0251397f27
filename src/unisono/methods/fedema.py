"""FedEMA: BYOL on clients that start from a mixture of the global model and their own, by how far they have drifted apart.

Zhuang et al., "Divergence-aware Federated Self-Supervised Learning" (ICLR 2022). With d the divergence of a client, the client
starts from mu * own + (1 - mu) * global, mu = min(lambda * d, 1). The autoscaler sets lambda = tau / d once, at the first
divergence that a client measures. A client that has not trained before takes the global model. As in the public code (EasyFL),
parameters are mixed and batch statistics are not: they are the global ones, and those of the predictor the client's own where
its own predictor counts for more than half.
"""

from __future__ import annotations

from pydantic import Field

from unisono.core.method import register
from unisono.core.payload import Payload, Tensors
from unisono.methods.divergence import DivergenceAware, DivergenceConfig
from unisono.methods.local_training import Start
from unisono.methods.momentum_target import ONLINE, TARGETS
from unisono.models.nets import mix_states


class FedEMAConfig(DivergenceConfig):
    """Options of FedEMA."""

    divergence_scale: float | None = Field(None, ge=0, description="lambda, the same for all clients; unset: the autoscaler's")
    autoscaler_tau: float = Field(0.7, ge=0, le=1, description="tau: the weight of its own model that a client begins with")


@register("fedema")
class FedEMA(DivergenceAware[FedEMAConfig]):
    """BYOL whose clients mix the global model with their own, the more of their own the further they have drifted apart."""

    Config = FedEMAConfig
    personal_networks = (*ONLINE, *TARGETS)

    def start_from(self, received: Payload, local: Payload) -> Start:
        divergence = self.divergence(received, local)
        if divergence is None:
            return Start(received)
        scale = self._scale(local, divergence)
        own_weight = min(scale * divergence, 1.0)
        mixed = Payload({name: _mixed(name, local.groups[name], received.groups[name], own_weight) for name in ONLINE})
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


def _mixed(name: str, own: Tensors, received: Tensors, own_weight: float) -> Tensors:
    if name == "predictor" and own_weight > 0.5:
        return mix_states(received, own, 1 - own_weight)
    return mix_states(own, received, own_weight)
