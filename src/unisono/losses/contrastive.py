"""Contrastive losses: positives together, other samples apart."""

from __future__ import annotations

from math import log
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.losses.precision import in_full_precision


@in_full_precision
def nt_xent(z_a: Tensor, z_b: Tensor, temperature: float, negatives: Tensor | None = None) -> Tensor:
    """Return the normalised temperature-scaled cross-entropy, both views as anchors; a scalar.

    SimCLR (Chen et al. 2020), Eq. 1: "l(i,j) = -log exp(sim(z_i, z_j)/tau) / sum_{k != i} exp(sim(z_i, z_k)/tau)", sim the
    cosine, averaged over the 2 x batch anchors; the sum runs over the other 2 x batch - 1 projections.

    Args:
        z_a: projections of the first views, shape (batch, dim), batch >= 2.
        z_b: projections of the second views, same shape.
        temperature: tau > 0.
        negatives: further projections that every anchor is held apart from, shape (num_negatives, dim).
    """
    batch = _batch_of_pairs("nt_xent", z_a, z_b)
    z = F.normalize(torch.cat([z_a, z_b]), dim=1)
    # Vectors are divided, not the square of similarities, which would take its memory twice.
    anchors = z / temperature
    logits = (anchors @ z.T).fill_diagonal_(float("-inf"))
    if negatives is not None:
        logits = torch.cat([logits, anchors @ F.normalize(negatives, dim=1).T], dim=1)
    partners = torch.arange(2 * batch, device=z.device).roll(batch)
    return F.cross_entropy(logits, partners)


@in_full_precision
def info_nce(z_1: Tensor, z_2: Tensor, temperature: float) -> Tensor:
    """Return minus the InfoNCE bound on the mutual information of two views; a scalar.

    A mutual information perspective on federated contrastive learning, Eq. 3: minus the mean over k of
    "log exp(f(z_1k, z_2k)) / (1/K sum_j exp(f(z_1j, z_2k)))", with f the cosine over the temperature. Never below -log K.

    Args:
        z_1: projections of the first views, shape (batch, dim), batch = K >= 2.
        z_2: projections of the second views, same shape.
        temperature: tau > 0.
    """
    batch = _batch_of_pairs("info_nce", z_1, z_2)
    logits = F.normalize(z_2, dim=1) @ F.normalize(z_1, dim=1).T / temperature
    return F.cross_entropy(logits, torch.arange(batch, device=z_1.device)) - log(batch)


@in_full_precision
def spectral_contrastive(z_1: Tensor, z_2: Tensor, mu: float = 1.0) -> Tensor:
    """Return the spectral contrastive loss of vectors clipped to norm sqrt(mu); a scalar.

    HaoChen et al. (2021), as Orchestra writes it: "-2 E[s_f(x, mu)^T s_f(x~, mu)] + E[(s_f(x, mu)^T s_f(y, mu))^2]",
    where s_f scales a vector longer than sqrt(mu) down to that length. Within a batch the second mean runs over the pairs
    of different samples, i != j.

    Args:
        z_1: projections of the first views, shape (batch, dim), batch >= 2.
        z_2: projections of the second views, same shape.
        mu: squared length that no vector exceeds, > 0.
    """
    batch = _batch_of_pairs("spectral_contrastive", z_1, z_2)
    products = _clip(z_1, mu**0.5) @ _clip(z_2, mu**0.5).T
    positives = products.diagonal()
    negatives = (products.square().sum() - positives.square().sum()) / (batch * (batch - 1))
    return negatives - 2 * positives.mean()


@in_full_precision
def triplet(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float, reduction: Literal["mean", "none"] = "mean"
) -> Tensor:
    """Return the triplet loss; a scalar, or with ``reduction="none"`` one number per triplet.

    CF-CL, Eq. 1: "max[0, |phi(d) - phi(d~)|^2 - |phi(d) - phi(d^)|^2 + m]", squared distances, averaged over triplets.

    Args:
        anchor: embeddings, shape (..., dim); the three shapes are broadcast.
        positive: embeddings of other views of the anchors.
        negative: embeddings of other samples.
        margin: m >= 0.
        reduction: ``mean`` or ``none``.
    """
    near = (anchor - positive).square().sum(dim=-1)
    far = (anchor - negative).square().sum(dim=-1)
    losses = F.relu(near - far + margin)
    return losses.mean() if reduction == "mean" else losses


def _batch_of_pairs(name: str, first: Tensor, second: Tensor) -> int:
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(f"{name} takes two (batch, dim) tensors, got {tuple(first.shape)} and {tuple(second.shape)}")
    if len(first) < 2:
        raise ValueError(f"{name} needs at least 2 samples, got {len(first)}")
    return len(first)


def _clip(z: Tensor, max_norm: float) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    return z * (max_norm / lengths.clamp(min=max_norm))
