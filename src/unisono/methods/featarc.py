"""FeatARC, "align only": SimCLR whose representations stay near those of the global model.

Wang et al., "Does Learning from Decentralized Non-IID Unlabeled Data Benefit from Self Supervision?" (ICLR 2023), without its
clusters of models, as the baseline of Louizos et al., "A Mutual Information Perspective on Federated Contrastive Learning"
(ICLR 2024), Table 3. The weight is theirs, 0.5; with 1 they saw the loss diverge.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.method import register
from unisono.core.payload import Payload, Update
from unisono.losses.contrastive import info_nce, nt_xent
from unisono.losses.siamese import negative_cosine
from unisono.methods.before_training import embed_before_training
from unisono.methods.local_training import Batch, LocalTraining, LossTerms
from unisono.models.heads import mlp


class FeatARCConfig(Section):
    """Options of FeatARC."""

    align_weight: float = Field(0.5, ge=0, description="weight of the alignment with the global model")
    loss: Literal["nt-xent", "info-nce"] = Field(
        "info-nce", description="nt-xent: both views are anchors; info-nce: every second view against all first views"
    )
    temperature: float = Field(0.1, gt=0, description="divides the cosine similarities")
    projection_dim: int = Field(128, ge=1, description="width of the projector's output")
    hidden_dim: int = Field(2048, ge=1, description="hidden width of the projector")


@register("featarc")
class FeatARC(LocalTraining[FeatARCConfig]):
    """SimCLR, and both views of a sample stay near the global model's representation of it."""

    Config = FeatARCConfig
    shared_networks = ("encoder", "projector")
    min_batch_size = 2

    def build_networks(self) -> nn.ModuleDict:
        encoder, config = self.backbone(), self.config
        projector = mlp([encoder.feature_dim, config.hidden_dim, config.projection_dim], norm=None)
        return nn.ModuleDict({"encoder": encoder, "projector": projector})

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        anchors = embed_before_training(
            nets, self.shared_networks, received, data, lambda x: nets["projector"](nets["encoder"](x))
        )
        return self.train(nets, received, local, data, ctx, lambda batch, rng: self._loss(nets, batch, rng, anchors)), local

    def _loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator, anchors: Tensor) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        z_1, z_2 = nets["projector"](self.pass_views(nets["encoder"], views)).chunk(2)
        contrast = info_nce if self.config.loss == "info-nce" else nt_xent
        unsupervised = contrast(z_1, z_2, self.config.temperature)
        alignment = self.alignment(z_1, z_2, anchors[batch.positions.to(anchors.device)])
        total = unsupervised + self.config.align_weight * alignment
        return {"loss": total, "unsupervised_loss": unsupervised, "align_loss": alignment}

    @staticmethod
    def alignment(z_1: Tensor, z_2: Tensor, anchors: Tensor) -> Tensor:
        """Return minus the mean inner product of a view's representation with the global model's, of unit length; in [-1, 1].

        Args:
            z_1: projections of the first views, shape (batch, dim).
            z_2: projections of the second views.
            anchors: the global model's projections of the plain samples at the start of the round.
        """
        return 0.5 * (negative_cosine(z_1, anchors) + negative_cosine(z_2, anchors))
