"""Means that a few hostile or broken clients cannot move far: trimmed mean, coordinate median, multi-Krum.

Yin et al., "Byzantine-Robust Distributed Learning" (ICML 2018);
Blanchard et al., "Machine Learning with Adversaries" (NeurIPS 2017).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.core.payload import Tensors


def trimmed_mean(updates: Sequence[Tensors], trim: float) -> Tensors:
    """Return the mean per coordinate without the ``floor(trim * n)`` smallest and largest values."""
    cut = num_cut(trim, len(updates))
    return {name: _stack(updates, name).sort(dim=0).values[cut : len(updates) - cut].mean(dim=0) for name in updates[0]}


def num_cut(trim: float, num_updates: int) -> int:
    """Return the number of values that a trimmed mean cuts from each end."""
    return math.floor(trim * num_updates + 1e-9)  # 0.29 * 100 is 28.999999999999996


def coordinate_median(updates: Sequence[Tensors]) -> Tensors:
    """Return the median per coordinate; the mean of the middle two where the number of clients is even."""
    middle = [(len(updates) - 1) // 2, len(updates) // 2]
    return {name: _stack(updates, name).sort(dim=0).values[middle].mean(dim=0) for name in updates[0]}


def weighted_mean(updates: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    """Return the weighted mean; where all weights are 0, the plain one."""
    if not any(weights):
        weights = [1.0] * len(updates)
    total = sum(weights)
    return {
        name: torch.stack([update[name] * (weight / total) for update, weight in zip(updates, weights, strict=True)]).sum(dim=0)
        for name in updates[0]
    }


def krum_selection(updates: Sequence[Tensors], num_byzantine: int) -> list[int]:
    """Return indices of the n - f updates that lie closest to their n - f - 2 nearest neighbours, ascending: multi-Krum."""
    flat = torch.stack([torch.cat([tensor.double().flatten() for tensor in update.values()]) for update in updates])
    distances = torch.cdist(flat, flat).square()
    num_clients = len(updates)
    num_neighbours = max(1, min(num_clients - 1, num_clients - num_byzantine - 2))
    nearest = distances.sort(dim=1).values[:, 1 : 1 + num_neighbours]
    scores = nearest.sum(dim=1)
    return sorted(torch.argsort(scores, stable=True)[: max(1, num_clients - num_byzantine)].tolist())


def _stack(updates: Sequence[Tensors], name: str) -> Tensor:
    return torch.stack([update[name] for update in updates])
