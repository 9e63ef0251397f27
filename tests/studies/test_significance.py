from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unisono.studies.significance import compare_pairs, holm


def test_fewer_than_three_pairs_say_nothing() -> None:
    difference = compare_pairs({0: 0.7, 1: 0.8, 5: 0.1}, {0: 0.6, 1: 0.6, 7: 0.9})
    assert difference.num_pairs == 2
    assert difference.mean == pytest.approx(0.15)
    assert (difference.t_test, difference.wilcoxon) == (None, None)
    assert difference.reason == "fewer than 3 seeds in common"
    assert compare_pairs({0: 1.0}, {1: 1.0}).mean is None


def test_the_t_test_of_three_pairs_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, deviation 1, t = 2 sqrt(3), p = 2 (1 - F(t)) with two degrees of freedom.

    For two degrees of freedom F(t) = 1/2 + t / (2 sqrt(2 + t^2)), so p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14).
    """
    difference = compare_pairs({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert (difference.mean, difference.deviation) == (2.0, 1.0)
    assert difference.t_test == pytest.approx(1 - math.sqrt(12 / 14))


@pytest.mark.parametrize("num_pairs", [3, 5, 6, 8])
def test_wilcoxon_cannot_go_below_two_over_two_to_the_n(num_pairs: int) -> None:
    first = {seed: 1.0 + 0.01 * seed for seed in range(num_pairs)}
    difference = compare_pairs(first, dict.fromkeys(first, 0.0))
    assert difference.wilcoxon == pytest.approx(2 / 2**num_pairs)


def test_equal_differences_say_nothing() -> None:
    difference = compare_pairs({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.5, 1: 1.5, 2: 2.5})
    assert difference.t_test is None
    assert difference.reason == "the same differences for all seeds"


def test_order_of_seeds_does_not_matter() -> None:
    first, second = {0: 0.7, 1: 0.5, 2: 0.9, 3: 0.2}, {3: 0.3, 2: 0.5, 1: 0.45, 0: 0.1}
    swapped = compare_pairs(second, first)
    assert compare_pairs(first, second).t_test == pytest.approx(swapped.t_test)
    assert compare_pairs(first, second).mean == pytest.approx(-(swapped.mean or 0))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, None, 0.9]) == [1.0, None, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_plain_and_bonferroni_and_keeps_the_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    for plain, value in zip(p_values, corrected, strict=True):
        assert value is not None
        assert plain - 1e-12 <= value <= min(1.0, len(p_values) * plain) + 1e-12
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    values = [corrected[place] or 0.0 for place in order]
    assert values == sorted(values)


def test_the_tests_are_scipys() -> None:
    first = dict(enumerate([0.71, 0.68, 0.74, 0.70]))
    second = dict(enumerate([0.69, 0.69, 0.70, 0.66]))
    difference = compare_pairs(first, second)
    assert difference.t_test == pytest.approx(stats.ttest_rel(list(first.values()), list(second.values())).pvalue)
