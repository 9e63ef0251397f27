"""The template of FedU and FedEMA: BYOL whose clients start from more of their own networks the further they have diverged.

Zhuang et al., "Collaborative Unsupervised Visual Representation Learning from Decentralized Data" (ICCV 2021) and
"Divergence-aware Federated Self-Supervised Learning" (ICLR 2022). In their public code (EasyFL) the divergence of a client is
the distance that its encoder moved in its own last training, ``drift``; ``global`` is the distance of the global encoder from
the client's last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from typing_extensions import TypeVar

from unisono.core.payload import Payload, Scalar, Update
from unisono.methods.local_training import Start
from unisono.methods.momentum_target import MomentumTarget, MomentumTargetConfig
from unisono.models.nets import weight_divergence


class DivergenceConfig(MomentumTargetConfig):
    """Options of FedU and FedEMA; at the papers' scale hidden_dim is 4096 and projection_dim 2048."""

    divergence: Literal["drift", "global"] = Field(
        "drift", description="distance of the encoder before and after the client's last training, or to the global encoder"
    )


D = TypeVar("D", bound=DivergenceConfig, default=Any)


class DivergenceAware(MomentumTarget[D]):
    """Template: a method writes ``start_from``, which asks for the divergence."""

    defaults = {
        "training": {"learning_rate": 0.032, "schedule": "cosine", "weight_decay": 5e-4},
        "views": {"preset": "easyfl"},
    }
    loss_weight = 1.0

    def divergence(self, received: Payload, local: Payload) -> float | None:
        """Return the divergence of a client; None if it has not trained before.

        Args:
            received: the global networks.
            local: what the client kept last.
        """
        if not local.groups:
            return None
        if self.config.divergence == "drift":
            return float(local.scalars["drift"])
        return weight_divergence(received.groups["encoder"], local.groups["encoder"])

    def remember(self, start: Start, update: Update) -> Mapping[str, Scalar]:
        if self.config.divergence == "global":
            return start.scalars
        drift = weight_divergence(start.networks.groups["encoder"], update.payload.groups["encoder"])
        return {**start.scalars, "drift": drift}
