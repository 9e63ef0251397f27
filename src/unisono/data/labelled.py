"""Hiding of labels: a share of every client's samples keeps its label, and nobody is told the others."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from unisono.core.config import Section
from unisono.core.context import Context
from unisono.data.partition import Partition


class LabelsConfig(Section):
    """The table ``[labels]``: how many labels of the training samples methods and probes may see."""

    fraction: float = Field(1.0, gt=0, le=1, description="share of each client's samples that have a label")
    probe: Literal["visible", "all"] = Field(
        "visible", description="labels that probes learn from: those that methods may see, or all of the data set"
    )
    classes: tuple[str, ...] = Field(
        (), description="names of the classes, in the order of their numbers; clients of a real federation number theirs so"
    )


def draw_labelled(labels: Tensor, partition: Partition, fraction: float, seed: int) -> Tensor:
    """Return a mask of the samples that keep their label, shape (num_samples,).

    Of a client with n labels, the whole number next to ``fraction * n`` keep theirs, but one at least. Classes are represented
    in proportion, as far as whole numbers allow (largest remainders). What a client keeps depends on its own samples and the
    seed alone.

    Args:
        labels: shape (num_samples,), below 0 where a label is unknown already.
        partition: who holds which sample.
        fraction: share of the labels to keep, in (0, 1].
        seed: the run's seed.
    """
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for client_id, rows in enumerate(partition.indices):
        known = rows[labels[rows] >= 0]
        if len(known) == 0:
            continue
        generator = Context(seed, client_id=client_id).rng("labels")
        shuffled = known[torch.randperm(len(known), generator=generator)]
        classes, counts = labels[known].unique(return_counts=True)
        quotas = proportional(counts.numpy(), max(1, round(fraction * len(known))))
        for label, quota in zip(classes.tolist(), quotas.tolist(), strict=True):
            mask[shuffled[labels[shuffled] == label][:quota]] = True
    return mask


def hide_labels(labels: Tensor, visible: Tensor) -> Tensor:
    """Return the labels with -1 in the place of hidden ones, shape (num_samples,).

    Args:
        labels: shape (num_samples,).
        visible: mask of the same shape.
    """
    return torch.where(visible, labels, -1)


def proportional(counts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Return whole numbers that sum to ``total``, in proportion to counts and never above them, by largest remainders.

    Args:
        counts: sizes of the parts, not negative, shape (num_parts,).
        total: at most the sum of counts.
    """
    exact: NDArray[np.float64] = counts * (total / counts.sum())
    quotas: NDArray[np.int64] = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(quotas - exact, kind="stable")
    quotas[order[: total - int(quotas.sum())]] += 1
    return quotas
