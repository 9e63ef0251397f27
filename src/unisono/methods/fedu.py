"""FedU: BYOL on every client, and a predictor that stays at home where the models have drifted apart.

Zhuang et al., "Collaborative Unsupervised Visual Representation Learning from Decentralized Data" (ICCV 2021). A client
takes the global online networks, but keeps its own predictor when its divergence is large ("divergence-aware predictor
update"). Its predictor and its target networks stay with it from one participation to the next.
"""

from __future__ import annotations

from pydantic import Field

from unisono.core.method import register
from unisono.core.payload import Payload
from unisono.methods.divergence import DivergenceAware, DivergenceConfig
from unisono.methods.local_training import Start
from unisono.methods.momentum_target import TARGETS
from unisono.methods.personal_predictor import start_with_own_predictor


class FedUConfig(DivergenceConfig):
    """Options of FedU."""

    divergence_threshold: float = Field(0.4, ge=0, description="below it a client takes the global predictor, else its own")


@register("fedu")
class FedU(DivergenceAware[FedUConfig]):
    """BYOL whose clients keep their own predictor when their divergence is large."""

    Config = FedUConfig

    @property
    def personal_networks(self) -> tuple[str, ...]:
        compared = () if self.config.divergence == "drift" else ("encoder",)
        return (*compared, "predictor", *TARGETS)

    def start_from(self, received: Payload, local: Payload) -> Start:
        return start_with_own_predictor(received, local, self.divergence(received, local), self.config.divergence_threshold)
