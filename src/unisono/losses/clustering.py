"""Contrastive clustering: instances are told apart by their rows, clusters by their columns of soft assignments.

Li et al., "Contrastive Clustering" (AAAI 2021); Miao & Koyuncu, "Federated Momentum Contrastive Clustering".
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.losses.contrastive import nt_xent
from unisono.losses.precision import in_full_precision

Contrast = Literal["ntxent", "paper"]
"""``ntxent``: the standard loss, both sides as anchors. ``paper``: Eq. 1 of Miao & Koyuncu, word for word."""


@in_full_precision
def one_sided_contrast(u: Tensor, v: Tensor, temperature: float) -> Tensor:
    """Return the contrast of Miao & Koyuncu, Eq. 1, with the rows of u as the only anchors; a scalar.

    "L(u, v; tau) = 1/n sum_i -log exp(s(u_i, v_i)/tau) / sum_{j != i} [exp(s(u_i, u_j)/tau) + exp(s(u_i, v_j)/tau)]", s the
    cosine. The positive is no part of the denominator, so the loss may be negative.

    Args:
        u: anchors, shape (num, dim), num >= 2.
        v: their partners, same shape.
        temperature: tau > 0.
    """
    if u.ndim != 2 or u.shape != v.shape or len(u) < 2:
        raise ValueError(f"one_sided_contrast takes two (num >= 2, dim) tensors, got {tuple(u.shape)} and {tuple(v.shape)}")
    u, v = F.normalize(u, dim=1), F.normalize(v, dim=1)
    own = (u @ u.T / temperature).fill_diagonal_(float("-inf"))
    across = u @ v.T / temperature
    positives = across.diagonal()
    others = across.masked_fill(torch.eye(len(u), dtype=torch.bool, device=u.device), float("-inf"))
    return (torch.cat([own, others], dim=1).logsumexp(dim=1) - positives).mean()


def instance_contrast(z_a: Tensor, z_b: Tensor, temperature: float, contrast: Contrast = "ntxent") -> Tensor:
    """Return the contrast of samples: two views of a sample attract, the other samples repel; a scalar.

    Args:
        z_a: projections of the first views, shape (batch, dim), batch >= 2.
        z_b: projections of the second views, same shape.
        temperature: tau_I > 0.
        contrast: which formula.
    """
    return nt_xent(z_a, z_b, temperature) if contrast == "ntxent" else one_sided_contrast(z_a, z_b, temperature)


def cluster_contrast(c_a: Tensor, c_b: Tensor, temperature: float, contrast: Contrast = "ntxent") -> Tensor:
    """Return the contrast of clusters: a cluster is its column of assignments, which two views share and other clusters do not.

    Args:
        c_a: soft assignments of the first views, shape (batch, num_clusters), num_clusters >= 2.
        c_b: soft assignments of the second views, same shape.
        temperature: tau_C > 0.
        contrast: which formula.
    """
    return instance_contrast(c_a.T, c_b.T, temperature, contrast)


@in_full_precision
def assignment_entropy(c: Tensor) -> Tensor:
    """Return the entropy of the mean assignment, from 0 (one cluster takes all) to log num_clusters; a scalar.

    Miao & Koyuncu, Eq. 3: "H(u) = -sum_i |u_i|_1 / |u|_1 log(|u_i|_1 / |u|_1)", u_i the columns. It is maximised; the plus sign
    before it in their Eq. 2 and 6 is a slip, for it would reward the collapse that the term is there to avoid.

    Args:
        c: soft assignments, not negative, shape (batch, num_clusters).
    """
    shares = c.sum(dim=0) / c.sum()
    # The derivative at 0 is infinite, and a softmax can underflow to 0.
    terms: Tensor = torch.special.entr(shares.clamp_min(torch.finfo(shares.dtype).tiny))
    return terms.sum()
