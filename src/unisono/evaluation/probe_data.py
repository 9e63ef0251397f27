"""Samples and labels that probes use, and outputs of networks for views of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from unisono.core.client_data import as_float
from unisono.core.mapped import batches
from unisono.evaluation.features import fitting_batch

COMMON_VALUES = 3 * 32 * 32
"""Values of a sample for which the caps of probes that look at views are meant; of larger ones fewer are looked at."""
Views = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]


class Judged(NamedTuple):
    """Samples that an encoder is judged on.

    Args:
        samples: shape (num, ...), as for ``embed``.
        rows: which of them, sorted; None for all.
        labels: of those, shape (len(rows),); None where there are none.
    """

    samples: Tensor
    rows: Tensor | None
    labels: Tensor | None

    def some(self, most: int, generator: torch.Generator) -> Judged:
        """Return these, or so many drawn ones if there are more; 0 for all."""
        rows = torch.arange(len(self.samples)) if self.rows is None else self.rows
        if most == 0 or len(rows) <= most:
            return self
        drawn = torch.randperm(len(rows), generator=generator)[:most].sort().values
        return Judged(self.samples, rows[drawn], None if self.labels is None else self.labels[drawn])

    def read(self) -> Tensor:
        """Return the samples, all in memory."""
        return self.samples if self.rows is None else self.samples[self.rows]


@dataclass(frozen=True)
class ProbeData:
    """Samples and labels that probes use.

    Args:
        train_samples: the federation's samples, as for ``embed``.
        train_labels: shape (num_train,), -1 where hidden; None where there are none.
        test_samples: held out, as for ``embed``; may be empty.
        test_labels: shape (num_test,); None where there are none.
        true_labels: of all training samples, hidden ones too, shape (num_train,), -1 where unknown; where nothing is held out,
            clusters are judged by them.
        finetune_samples: labelled samples that were kept out of training, for fine-tuning; None takes training samples.
        finetune_labels: shape (num_finetune,).
        sites: the owner of every training sample, where owners are real and not drawn, shape (num_train,).
    """

    train_samples: Tensor
    train_labels: Tensor | None
    test_samples: Tensor
    test_labels: Tensor | None
    true_labels: Tensor | None = None
    finetune_samples: Tensor | None = None
    finetune_labels: Tensor | None = None
    sites: Tensor | None = None

    @property
    def has_labels(self) -> bool:
        """True if probes with labels have all they need: visible ones to learn from, others to be tested on."""
        if not self.held_out:
            return self.judged.labels is not None
        return self.train_labels is not None and self.test_labels is not None and bool((self.train_labels >= 0).any())

    @property
    def fine_tuning(self) -> tuple[Tensor, Tensor, float] | None:
        """Samples and labels to fine-tune with, and how many times more samples there are with those trained on."""
        if self.finetune_samples is None or self.finetune_labels is None:
            return None
        known = self.finetune_labels >= 0
        times = (len(self.train_samples) + len(self.finetune_samples)) / len(self.finetune_samples)
        return self.finetune_samples[known], self.finetune_labels[known], times

    @property
    def held_out(self) -> bool:
        """True if there are test samples."""
        return len(self.test_samples) > 0

    @cached_property
    def judged(self) -> Judged:
        """Samples that clusters are judged on: the test samples or, if there are none, the training samples with labels."""
        if self.held_out:
            return Judged(self.test_samples, None, self.test_labels)
        labels = self.true_labels
        if labels is None or not bool((labels >= 0).any()):
            return Judged(self.train_samples, None, None)
        known = (labels >= 0).nonzero().flatten()
        return Judged(self.train_samples, None if len(known) == len(labels) else known, labels[known])


def fitting_cap(samples: Tensor, most: int, least: int = 1) -> int:
    """Return how many samples a probe looks at views of: fewer where they are large, so that time is bounded too.

    Args:
        samples: shape (num, ...).
        most: how many samples of 32 pixels and three channels.
        least: of any size.
    """
    return min(most, max(least, most * COMMON_VALUES // max(1, samples.shape[1:].numel())))


def view_outputs(
    networks: Sequence[Callable[[Tensor], Tensor]],
    views: Views,
    samples: Tensor,
    rows: Tensor,
    generator: torch.Generator,
    first_only: bool = False,
) -> list[tuple[Tensor, Tensor]]:
    """Return the outputs of each network for the first and the second view of samples; views of large ones are made in parts.

    Args:
        networks: batch to outputs.
        views: two views of floats.
        samples: shape (num, ...).
        rows: which of them.
        generator: draws the views.
        first_only: whether the first view is taken for the second too.
    """
    parts: list[list[tuple[Tensor, Tensor]]] = []
    for chunk in batches(samples, fitting_batch(samples, len(rows)), rows):
        pair = views(as_float(chunk), generator)
        outputs = [(network(pair[0]), None if first_only else network(pair[1])) for network in networks]
        parts.append([(first, first if second is None else second) for first, second in outputs])
    joined = []
    for of_network in zip(*parts, strict=True):
        first, second = zip(*of_network, strict=True)
        joined.append((torch.cat(first), torch.cat(second)))
    return joined
