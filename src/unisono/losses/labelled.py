"""Losses of samples whose labels are known, beside an unsupervised one.

Louizos et al., "A Mutual Information Perspective on Federated Contrastive Learning" (ICLR 2024), Eq. 9 to 12 and Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.losses.precision import in_full_precision


def within_classes(loss: Callable[[Tensor], Tensor], labels: Tensor, min_samples: int) -> Tensor:
    """Return the sum over classes of a loss among the samples of each class; a scalar, 0 where no class has enough.

    Algorithm 2: "for label i in {0, ..., |Y| - 1} do: L_s += L_ul(z1_l[y_l == i], z2_l[y_l == i])". A contrastive loss of one
    sample is 0 whatever the networks say, so such classes are left out.

    Args:
        loss: mask of samples, shape (batch,), to their loss.
        labels: shape (batch,), below 0 where unknown.
        min_samples: the fewest samples that the loss is defined for.
    """
    total = torch.zeros((), device=labels.device)
    for label in labels[labels >= 0].unique():
        members = labels == label
        if int(members.sum()) >= min_samples:
            total = total + loss(members)
    return total


@in_full_precision
def label_cross_entropy(logits_1: Tensor, logits_2: Tensor, labels: Tensor) -> Tensor:
    """Return minus the mean of log r(y | z_1) + log r(y | z_2) over the samples with a label; a scalar.

    Eq. 12: the label is predicted from either view.

    Args:
        logits_1: class scores of the first views, shape (batch, num_classes).
        logits_2: class scores of the second views, same shape.
        labels: shape (batch,), below 0 where unknown; one at least is known.
    """
    known = labels >= 0
    return F.cross_entropy(logits_1[known], labels[known]) + F.cross_entropy(logits_2[known], labels[known])
