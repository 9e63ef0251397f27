"""Federated BYOL: an online network predicts a slowly moving target.

Grill et al., "Bootstrap Your Own Latent" (NeurIPS 2020), as the baseline of Lubana et al., "Orchestra" (ICML 2022). Networks
and loss are those of ``momentum_target.py``. Across devices the target networks are averaged too; across silos, with
``divergence_threshold``, clients keep their targets and follow FedU's rule about the predictor.
"""

from __future__ import annotations

from pydantic import Field
from torch import nn

from unisono.core.method import register
from unisono.core.payload import Payload
from unisono.methods.local_training import Start
from unisono.methods.momentum_target import ONLINE, TARGETS, MomentumTarget, MomentumTargetConfig
from unisono.methods.personal_predictor import start_across_silos
from unisono.models.nets import add_targets


class BYOLConfig(MomentumTargetConfig):
    """Options of BYOL."""

    ema: float = Field(0.996, ge=0, le=1, description="momentum of the target networks")
    divergence_threshold: float | None = Field(
        None, ge=0, description="cross-silo (0.4 in FedU): from it on clients keep their own predictor; unset: no state"
    )


@register("byol")
class BYOL(MomentumTarget[BYOLConfig]):
    """The online view predicts the target's projection of the other view; online and target networks are averaged."""

    Config = BYOLConfig
    defaults = {"training": {"learning_rate": 0.01}, "views": {"preset": "byol"}}

    @property
    def shared_networks(self) -> tuple[str, ...]:
        return ONLINE if self._keeps_state else (*ONLINE, *TARGETS)

    @property
    def personal_networks(self) -> tuple[str, ...]:
        return ("encoder", "predictor", *TARGETS) if self._keeps_state else ()

    def build_networks(self) -> nn.ModuleDict:
        online, _ = self.make_projection(), self.make_projection()  # targets have drawn weights before the predictor ever since
        return add_targets(nn.ModuleDict({**online, **self.make_predictor()}), tuple(TARGETS.values()))

    def start_from(self, received: Payload, local: Payload) -> Start:
        threshold = self.config.divergence_threshold
        return Start(received) if threshold is None else start_across_silos(received, local, threshold)

    @property
    def _keeps_state(self) -> bool:
        return self.config.divergence_threshold is not None
