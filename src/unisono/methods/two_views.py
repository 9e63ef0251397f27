"""What methods that compare two views of a batch minimise: their own loss, user verification, and labels where there are some.

Louizos, Reisser, Korzhenkov, "A Mutual Information Perspective on Federated Contrastive Learning" (ICLR 2024), Algorithm 2. The
paper's Eq. 13 verifies users on labelled samples too, its Algorithm 2 on unlabelled ones only: ``uv_labelled`` chooses.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor, nn

from unisono.losses.labelled import label_cross_entropy, within_classes
from unisono.losses.mutual_information import global_bound, info_nce_bound
from unisono.methods.local_training import LossTerms
from unisono.methods.user_verification import UserVerificationConfig, UserVerified

Rows = Tensor | slice
"""Which samples of a batch: a mask of shape (batch,), or all of them."""


class TwoViewConfig(UserVerificationConfig):
    """Options of methods that compare two views."""

    label_weight: float = Field(
        0.0,
        ge=0,
        description="weight of the labelled part: own loss within classes, cross-entropy; 1 in the paper, 0 sees no label",
    )
    uv_labelled: bool = Field(False, description="verify users on labelled samples too, as in Eq. 13")


def combine(
    method: UserVerified,
    config: TwoViewConfig,
    nets: nn.ModuleDict,
    features: Tensor,
    labels: Tensor | None,
    own_loss: Callable[[Rows], Tensor],
    scores: Callable[[Rows], Tensor] | None = None,
) -> LossTerms:
    """The terms of Algorithm 2, ``loss`` among them.

    Args:
        method: whose heads and smallest batch.
        config: the weights.
        nets: what ``method.with_heads`` returned.
        features: of the first and then of the second views, shape (2 x batch, feature_dim).
        labels: shape (batch,), -1 where hidden; None where the method sees none.
        own_loss: the method's loss among some samples of the batch.
        scores: the critic of some samples, first views in rows and second views in columns, to measure the bound of Eq. 6.
    """
    h_1, h_2 = features.chunk(2)
    known = labels >= 0 if method.needs_labels and labels is not None else None
    everyone = slice(None)
    unlabelled = everyone if known is None else ~known
    losses: dict[str, Tensor] = {}
    if len(h_1[unlabelled]) >= method.min_batch_size:
        losses["unsupervised_loss"] = own_loss(unlabelled)
    verified = everyone if config.uv_labelled else unlabelled
    verification = method.verify(nets, h_1[verified], h_2[verified])
    if verification:
        losses["uv_loss"] = verification.pop("uv_loss")
    if labels is not None and known is not None and bool(known.any()):
        logits_1, logits_2 = nets["label_head"](features).chunk(2)
        losses["class_loss"] = within_classes(own_loss, labels, method.min_batch_size)
        losses["label_loss"] = label_cross_entropy(logits_1, logits_2, labels)
    weights = {"uv_loss": config.uv_weight, "class_loss": config.label_weight, "label_loss": config.label_weight}
    total = torch.stack([weights.get(name, 1.0) * loss for name, loss in losses.items()]).sum()
    information = dict(verification)
    if scores is not None and len(h_1[unlabelled]) >= 2:
        with torch.no_grad():
            information |= _information(verification, scores(unlabelled), method.info.num_clients)
    return {"loss": total, **(losses if len(losses) > 1 else {}), **information}


def _information(verification: LossTerms, scores: Tensor, num_clients: int) -> dict[str, Tensor]:
    """The local term of Eq. 6, and the whole bound where users are verified."""
    local = info_nce_bound(scores)
    if not verification:
        return {"mi_local": local}
    bound = global_bound(local, verification["mi_client_1"], verification["mi_client_2"], num_clients)
    return {"mi_local": local, "mi_bound": bound}
