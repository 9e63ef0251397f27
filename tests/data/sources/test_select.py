from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.data.sources.select import balanced_subset, choose_rows, hold_out, strata

numbers = st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 3)), min_size=1, max_size=60)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.floats(0, 0.95))
def test_every_group_gives_its_share_and_keeps_a_sample(groups, fraction):
    mask = hold_out(np.array(groups), fraction)
    taken = Counter(np.array(groups)[mask].tolist())
    for group, size in Counter(groups).items():
        assert abs(taken[group] - size * fraction) < 1
        assert taken[group] < size


def test_the_whole_gives_the_fraction_even_where_groups_are_too_small_for_one_each():
    assert hold_out(np.arange(100) // 2, 0.2).sum() == 20
    assert hold_out(np.zeros(1000, dtype=np.int64), 0.2).sum() == 200
    assert not hold_out(np.zeros(10, dtype=np.int64), 0.0).any()


def test_the_choice_is_always_the_same_and_not_periodic():
    groups = np.arange(60) % 3
    mask = hold_out(groups, 0.2)
    np.testing.assert_array_equal(mask, hold_out(groups, 0.2))
    assert len(set(np.diff(np.flatnonzero(mask[groups == 0])).tolist())) > 1


def test_strata_tell_pairs_apart():
    labels, owners = [0, 0, 1, 1, -1], [5, 7, 5, 5, 7]
    groups = strata(labels, owners, 5)
    assert groups[2] == groups[3]
    assert len(set(groups.tolist())) == 4
    np.testing.assert_array_equal(strata(None, None, 3), [0, 0, 0])


def round_robin(keys, limit):
    """How many of each key are kept by dealing one to each key in turn."""
    left, kept = Counter(keys), Counter()
    while sum(kept.values()) < min(limit, len(keys)):
        for key in sorted(left):
            if left[key] and sum(kept.values()) < limit:
                left[key] -= 1
                kept[key] += 1
    return kept


@given(numbers, st.integers(1, 70))
def test_classes_get_what_dealing_in_turn_gives_them(pairs, limit):
    labels = [label for label, _ in pairs]
    rows = balanced_subset(limit, labels, [owner for _, owner in pairs], len(pairs))
    assert len(rows) == min(limit, len(pairs))
    assert (np.diff(rows) > 0).all()
    kept = Counter(labels[row] for row in rows)
    # Which classes get one more than others is free; how many get how much is not.
    assert sorted(kept.values()) == sorted(count for count in round_robin(labels, limit).values() if count)
    assert all(kept[label] == Counter(labels)[label] or kept[label] >= max(kept.values()) - 1 for label in set(labels))


@given(numbers, st.integers(1, 70))
def test_inside_a_class_the_owners_are_dealt_to_in_turn(pairs, limit):
    labels, owners = [label for label, _ in pairs], [owner for _, owner in pairs]
    rows = balanced_subset(limit, labels, owners, len(pairs))
    for label in set(labels):
        everyone = [owner for other, owner in pairs if other == label]
        kept = [owners[row] for row in rows if labels[row] == label]
        expected = round_robin(everyone, len(kept)).values() if kept else []
        assert sorted(Counter(kept).values()) == sorted(count for count in expected if count)


def test_without_labels_owners_are_balanced_and_without_both_the_first_are_kept():
    assert balanced_subset(4, None, [0, 0, 0, 0, 1, 1], 6).tolist() == [0, 1, 4, 5]
    assert balanced_subset(3, None, None, 6).tolist() == [0, 1, 2]


@pytest.mark.parametrize("num_train", [12, 20])
def test_rows_to_train_and_to_test_on_are_apart(num_train):
    labels = np.arange(20) % 2
    train, test = choose_rows(labels, None, num_train, 20, 0.2, 6, 4)
    assert len(train) == 6
    assert len(test) == 4
    assert not set(train.tolist()) & set(test.tolist())
    assert labels[train].sum() == 3
    assert labels[test].sum() == 2
    if num_train == 12:
        assert train.max() < 12 <= test.min()
