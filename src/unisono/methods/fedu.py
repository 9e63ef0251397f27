"""FedU: BYOL on every client, and a predictor that stays at home where the models have drifted apart.

Zhuang et al., "Collaborative Unsupervised Visual Representation Learning from Decentralized Data" (ICCV 2021). A client
takes the global online networks, but keeps its own predictor when the global encoder is far from the one it trained last
("divergence-aware predictor update"). Its last encoder, its predictor and its target networks stay with it from one
participation to the next.
"""

from __future__ import annotations

from pydantic import Field

from unisono.core.method import register
from unisono.core.payload import Payload
from unisono.methods.local_training import Start
from unisono.methods.momentum_target import TARGETS, MomentumTarget, MomentumTargetConfig
from unisono.methods.personal_predictor import start_with_own_predictor


class FedUConfig(MomentumTargetConfig):
    """Options of FedU; at the paper's scale hidden_dim is 4096 and projection_dim 2048."""

    divergence_threshold: float = Field(0.4, ge=0, description="below it a client takes the global predictor, else its own")


@register("fedu")
class FedU(MomentumTarget[FedUConfig]):
    """BYOL whose clients keep their own predictor when the global encoder has moved far from theirs."""

    Config = FedUConfig
    defaults = {
        "training": {"learning_rate": 0.032, "schedule": "cosine", "weight_decay": 5e-4},
        "views": {"preset": "easyfl"},
    }
    personal_networks = ("encoder", "predictor", *TARGETS)

    def start_from(self, received: Payload, local: Payload) -> Start:
        return start_with_own_predictor(received, local, self.config.divergence_threshold)
