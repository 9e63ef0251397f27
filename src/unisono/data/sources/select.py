"""Choice of the samples to hold out and to keep: pure functions of labels and owners."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Integers = NDArray[np.int64]

SPLIT_SEED = 0
"""Seed of the held-out part, which belongs to the data: every run with every seed is tested on the same samples."""


def strata(labels: ArrayLike | None, owners: ArrayLike | None, num_samples: int) -> Integers:
    """Return a number for each (label, owner) pair, shape (num_samples,); what is None counts as one value."""
    groups = np.zeros(num_samples, dtype=np.int64)
    for key in (labels, owners):
        if key is not None:
            values, positions = np.unique(np.asarray(key), return_inverse=True)
            groups = groups * len(values) + positions
    return groups


def hold_out(groups: Integers, fraction: float) -> NDArray[np.bool_]:
    """Return a mask of the samples to hold out: this fraction of all and, within one sample, of every group.

    No group loses its last sample. The choice depends on nothing but the arguments.

    Args:
        groups: the group of each sample, shape (num_samples,).
        fraction: in [0, 1).
    """
    shuffled = np.random.default_rng(SPLIT_SEED).permutation(len(groups))
    in_groups = shuffled[np.argsort(groups[shuffled], kind="stable")]
    # Going through the groups one after another and taking each sample at which the running quota gains a whole number
    # gives every group its share, even groups too small to give a sample each.
    quota = np.floor(np.arange(len(groups) + 1) * fraction + 0.5)
    mask = np.zeros(len(groups), dtype=np.bool_)
    mask[in_groups] = np.diff(quota) > 0
    first_of_group = in_groups[np.unique(groups[in_groups], return_index=True)[1]]
    emptied = np.isin(groups[first_of_group], groups[~mask], invert=True)
    mask[first_of_group[emptied]] = False
    return mask


def balanced_subset(limit: int, labels: ArrayLike | None, owners: ArrayLike | None, num_samples: int) -> Integers:
    """Return the ``limit`` samples to keep, ascending: equally many of every class and, inside a class, of every owner.

    A class too small for its share leaves the rest to the others. Without labels the owners are balanced.

    Args:
        limit: how many to keep.
        labels: shape (num_samples,) or None.
        owners: shape (num_samples,) or None.
        num_samples: how many there are.
    """
    classes = strata(labels, None, num_samples)
    by_owner = np.argsort(_rank(strata(labels, owners, num_samples)), kind="stable")
    by_class = by_owner[np.argsort(_rank(classes[by_owner]), kind="stable")]
    return np.sort(by_class[:limit])


def choose_rows(
    labels: Integers | None,
    owners: Integers | None,
    num_train: int,
    num_rows: int,
    test_fraction: float,
    limit: int | None,
    test_limit: int | None,
) -> tuple[Integers, Integers]:
    """Return rows to train on and rows to test on, so that no other row need be read.

    Args:
        labels: of all rows, shape (num_rows,), or None.
        owners: of the first ``num_train`` rows at least, or None.
        num_train: how many rows the source trains on; the others are its test part.
        num_rows: how many rows there are.
        test_fraction: part of the rows to hold out where the source has no test part.
        limit: most rows to train on.
        test_limit: most rows to test on.
    """
    train, test = np.arange(num_train), np.arange(num_train, num_rows)
    if num_train == num_rows:
        mask = hold_out(strata(labels, owners, num_rows), test_fraction)
        train, test = np.flatnonzero(~mask), np.flatnonzero(mask)
    if limit is not None:
        train = train[balanced_subset(limit, _at(labels, train), _at(owners, train), len(train))]
    if test_limit is not None:
        test = test[balanced_subset(test_limit, _at(labels, test), None, len(test))]
    return train, test


def _at(numbers: Integers | None, rows: Integers) -> Integers | None:
    return None if numbers is None else numbers[rows]


def _rank(groups: Integers) -> Integers:
    """Return the number of earlier samples in the group of each sample, shape (num_samples,)."""
    order = np.argsort(groups, kind="stable")
    in_order = groups[order]
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[order] = np.arange(len(groups)) - np.searchsorted(in_order, in_order)
    return ranks
