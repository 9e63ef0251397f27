"""Siamese losses: a prediction of one view meets the representation of the other; no negatives, so a batch of one will do."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from unisono.losses.precision import in_full_precision


@in_full_precision
def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """Return the mean of -cos(p, stop-gradient(z)); a scalar in [-1, 1].

    SimSiam (Chen & He 2021), Eq. 1 with the stop-gradient of Eq. 3: "D(p1, stopgrad(z2))".

    Args:
        p: predictions, shape (batch, dim).
        z: representations, same shape; no gradient flows here.
    """
    return -F.cosine_similarity(p, z.detach(), dim=1).mean()


def byol_regression(p: Tensor, z: Tensor) -> Tensor:
    """Return the mean of 2 - 2 cos(p, stop-gradient(z)), the squared distance of the normalised vectors; a scalar in [0, 4].

    BYOL (Grill et al. 2020), Eq. 2.

    Args:
        p: predictions of the online network, shape (batch, dim).
        z: projections of the target network, same shape; no gradient flows here.
    """
    return 2 + 2 * negative_cosine(p, z)


def symmetric_byol_regression(p_a: Tensor, p_b: Tensor, z_a: Tensor, z_b: Tensor) -> Tensor:
    """Return the sum of both directions; a scalar in [0, 8].

    BYOL: "we symmetrize the loss by separately feeding v' to the online network and v to the target network", L + L~.

    Args:
        p_a: predictions from the first views, shape (batch, dim).
        p_b: predictions from the second views.
        z_a: target projections of the first views; no gradient flows here.
        z_b: target projections of the second views; nor here.
    """
    return byol_regression(p_a, z_b) + byol_regression(p_b, z_a)
