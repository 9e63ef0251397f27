"""Which labels exist: a share per client, classes in proportion, nothing else revealed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_partition import balanced_labels, partition_of
from unisono.core.config import make_section
from unisono.core.errors import UserError
from unisono.data.labelled import LabelsConfig, draw_labelled, hide_labels, proportional
from unisono.data.partition import Partition


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any), st.floats(0, 1))
def test_proportional_is_whole_exact_and_fair(counts: list[int], share: float) -> None:
    total = round(share * sum(counts))
    quotas = proportional(np.array(counts), total)
    assert quotas.sum() == total
    assert (quotas <= counts).all()
    exact = np.array(counts) * total / sum(counts)
    assert (np.abs(quotas - exact) < 1 + 1e-6).all()


def test_proportional_by_hand() -> None:
    """5 of (6, 3, 1): exact shares 3, 1.5, 0.5; the first of the two equal remainders wins."""
    assert proportional(np.array([6, 3, 1]), 5).tolist() == [3, 2, 0]
    assert proportional(np.array([10, 10, 10]), 1).tolist() == [1, 0, 0]
    assert proportional(np.array([4, 0, 4]), 8).tolist() == [4, 0, 4]


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(0.01, 1), st.integers(1, 12))
def test_every_client_keeps_its_share_in_proportion(seed: int, fraction: float, num_clients: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (200,), generator=generator)
    partition = Partition(tuple(torch.randperm(200, generator=generator).tensor_split(num_clients)))
    mask = draw_labelled(labels, partition, fraction, seed)
    for rows in partition.indices:
        kept = int(mask[rows].sum())
        assert kept == max(1, round(fraction * len(rows)))
        for label in range(5):
            members = rows[labels[rows] == label]
            assert abs(int(mask[members].sum()) - kept * len(members) / len(rows)) < 1


def test_a_tenth_of_a_large_client_is_a_tenth_of_every_class() -> None:
    labels = balanced_labels(10, 100)
    mask = draw_labelled(labels, partition_of("iid", labels, 1), 0.1, seed=3)
    assert [int(mask[labels == label].sum()) for label in range(10)] == [10] * 10


def test_the_seed_decides_and_clients_do_not_matter_to_each_other() -> None:
    labels = balanced_labels(10, 40)
    partition = partition_of("iid", labels, 8)
    mask = draw_labelled(labels, partition, 0.2, seed=1)
    assert torch.equal(mask, draw_labelled(labels, partition, 0.2, seed=1))
    assert not torch.equal(mask, draw_labelled(labels, partition, 0.2, seed=2))
    other = labels.clone()
    other[partition.indices[5]] = 0
    changed = draw_labelled(other, partition, 0.2, seed=1) != mask
    assert not any(changed[rows].any() for client, rows in enumerate(partition.indices) if client != 5)


def test_labels_that_are_unknown_already_stay_unknown() -> None:
    labels = torch.tensor([-1] * 10 + [0, 1] * 5 + [-1] * 4)
    partition = Partition((torch.arange(20), torch.arange(20, 24)))
    mask = draw_labelled(labels, partition, 0.5, seed=0)
    assert int(mask.sum()) == 5
    assert bool((labels[mask] >= 0).all())


def test_hidden_labels_become_minus_one() -> None:
    assert hide_labels(torch.tensor([4, 2, 7]), torch.tensor([True, False, True])).tolist() == [4, -1, 7]


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5])
def test_fraction_is_a_share(fraction: float) -> None:
    with pytest.raises(UserError, match=r"labels\.fraction"):
        make_section(LabelsConfig, {"fraction": fraction}, "labels")
