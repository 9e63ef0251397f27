"""Losses within classes, and of labels from both views."""

import math

import pytest
import torch
from torch import Tensor

from unisono.losses.contrastive import info_nce
from unisono.losses.labelled import label_cross_entropy, within_classes

LABELS = torch.tensor([2, -1, 0, 2, 5, 0, 2, -1])


def test_sum_over_the_classes_with_enough_samples() -> None:
    """Class 2 has three samples, class 0 two, class 5 one; hidden ones belong to none."""
    values = torch.arange(8.0)
    assert float(within_classes(lambda rows: values[rows].sum(), LABELS, min_samples=1)) == (0 + 3 + 6) + (2 + 5) + 4
    assert float(within_classes(lambda rows: values[rows].sum(), LABELS, min_samples=2)) == (0 + 3 + 6) + (2 + 5)
    assert float(within_classes(lambda rows: values[rows].sum(), LABELS, min_samples=3)) == 0 + 3 + 6


def test_nothing_where_no_class_has_enough() -> None:
    def refuse(rows: Tensor) -> Tensor:
        raise AssertionError(rows)

    assert float(within_classes(refuse, torch.tensor([-1, -1]), min_samples=1)) == 0
    assert float(within_classes(refuse, torch.tensor([0, 1, 2]), min_samples=2)) == 0


def test_contrast_within_classes_by_hand() -> None:
    """Eq. 9 for two classes: views contrast with views of their own class only."""
    generator = torch.Generator().manual_seed(0)
    z_1, z_2 = (torch.randn(8, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    total = 0.0
    for label in (0, 2):
        members = [index for index in range(8) if LABELS[index] == label]
        cosines = {(j, k): float(z_1[j] @ z_2[k] / (z_1[j].norm() * z_2[k].norm())) / 0.5 for j in members for k in members}
        for k in members:
            mean = sum(math.exp(cosines[j, k]) for j in members) / len(members)
            total -= (cosines[k, k] - math.log(mean)) / len(members)
    found = within_classes(lambda rows: info_nce(z_1[rows], z_2[rows], 0.5), LABELS, min_samples=2)
    assert float(found) == pytest.approx(total)


def test_label_cross_entropy_by_hand() -> None:
    logits_1, logits_2 = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    labels = torch.tensor([1, -1, 0, -1])
    expected = 0.0
    for row in (0, 2):
        for logits in (logits_1, logits_2):
            expected -= float(logits[row, labels[row]] - logits[row].exp().sum().log()) / 2
    assert float(label_cross_entropy(logits_1, logits_2, labels)) == pytest.approx(expected)


def test_hidden_samples_get_no_gradient() -> None:
    logits = torch.randn(4, 3, requires_grad=True)
    label_cross_entropy(logits, logits, torch.tensor([1, -1, 0, -1])).backward()
    assert logits.grad is not None
    assert logits.grad[[1, 3]].abs().max() == 0
    assert logits.grad[[0, 2]].abs().min() > 0
