"""SemiFed: pseudo-labels of confident samples, and consistent predictions of two views.

Lin et al., "SemiFed: Semi-supervised Federated Learning with Consistency and Pseudo-Labeling" (2021), as the baseline of
Louizos et al., "A Mutual Information Perspective on Federated Contrastive Learning" (ICLR 2024), B.2: "we do not make use of an
ensemble of client models in order to impute the missing labels but rather assign a pseudo-label to the datapoint based on the
received server model". So no client sees another's model. They do not print the consistency loss; here it is the
Kullback-Leibler divergence from the prediction of the first view, held fixed, to that of the second.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.method import register
from unisono.core.payload import Payload, Update
from unisono.losses.labelled import label_cross_entropy
from unisono.methods.label_head import LabelHead
from unisono.methods.local_training import Batch, LossTerms
from unisono.methods.user_verification import UserVerificationConfig


class SemiFedConfig(UserVerificationConfig):
    """Options of SemiFed."""

    threshold: float = Field(0.95, ge=0, le=1, description="confidence above which a prediction becomes a pseudo-label")
    pseudo_weight: float = Field(1.0, ge=0, description="weight of the cross-entropy with pseudo-labels")
    consistency_weight: float = Field(1.0, ge=0, description="weight of the divergence between two views' predictions")


@register("semifed")
class SemiFed(LabelHead[SemiFedConfig]):
    """Labels where there are some, confident predictions of the server's model elsewhere, and agreement of two views."""

    Config = SemiFedConfig

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        logits = self.received_logits(nets, received, data)
        guesses = pseudo_labels(logits, self.config.threshold)
        return self.train(nets, received, local, data, ctx, lambda batch, rng: self._loss(nets, batch, rng, guesses)), local

    def _loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator, guesses: Tensor) -> LossTerms:
        if batch.labels is None:
            raise ValueError("SemiFed needs labels, hidden ones as -1")
        h, logits_1, logits_2 = self.view_logits(nets, batch, generator)
        unlabelled = batch.labels < 0
        pseudo = torch.where(unlabelled, guesses[batch.positions.to(guesses.device)], -1)
        zero = h.new_zeros(())
        terms = {
            "label_loss": zero if bool(unlabelled.all()) else label_cross_entropy(logits_1, logits_2, batch.labels),
            "pseudo_loss": label_cross_entropy(logits_1, logits_2, pseudo) if bool((pseudo >= 0).any()) else zero,
            "consistency_loss": consistency(logits_1[unlabelled], logits_2[unlabelled]) if bool(unlabelled.any()) else zero,
            **self.verify(nets, *h.chunk(2)),
        }
        config = self.config
        total = (
            terms["label_loss"]
            + config.pseudo_weight * terms["pseudo_loss"]
            + config.consistency_weight * terms["consistency_loss"]
            + config.uv_weight * terms.get("uv_loss", zero)
        )
        return {"loss": total, **terms, "pseudo_labelled": (pseudo >= 0).float().mean()}


def pseudo_labels(logits: Tensor, threshold: float) -> Tensor:
    """Return the most likely class of each sample where its probability exceeds the threshold, else -1, shape (batch,)."""
    if len(logits) == 0:
        return torch.empty(0, dtype=torch.long, device=logits.device)
    confidence, classes = logits.softmax(dim=1).max(dim=1)
    return torch.where(confidence > threshold, classes, -1)


def consistency(logits_1: Tensor, logits_2: Tensor) -> Tensor:
    """Return the mean of KL(p_1 || p_2), where no gradient flows through p_1; a scalar."""
    fixed = logits_1.detach().log_softmax(dim=1)
    return F.kl_div(logits_2.log_softmax(dim=1), fixed, reduction="batchmean", log_target=True)
