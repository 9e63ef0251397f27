from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unisono.studies.significance import compare_pairs, detectable, holm, margin_needed, summarise, t_interval


def test_fewer_than_three_pairs_say_nothing() -> None:
    difference = compare_pairs({0: 0.7, 1: 0.8, 5: 0.1}, {0: 0.6, 1: 0.6, 7: 0.9})
    assert difference.num_pairs == 2
    assert difference.mean == pytest.approx(0.15)
    assert (difference.t_test, difference.interval, difference.could_see()) == (None, None, None)
    assert difference.reason == "fewer than 3 seeds in common"
    assert compare_pairs({0: 1.0}, {1: 1.0}).mean is None


def test_the_t_test_of_three_pairs_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, deviation 1, t = 2 sqrt(3), p = 2 (1 - F(t)) with two degrees of freedom.

    For two degrees of freedom F(t) = 1/2 + t / (2 sqrt(2 + t^2)), so p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14).
    """
    difference = compare_pairs({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert (difference.mean, difference.deviation) == (2.0, 1.0)
    assert difference.t_test == pytest.approx(1 - math.sqrt(12 / 14))


def test_the_interval_of_three_pairs_by_hand() -> None:
    """With two degrees of freedom the quantile is t = (2q - 1) sqrt(2 / (1 - (2q - 1)^2)), at 95% 0.95 sqrt(2 / 0.0975)."""
    difference = summarise([1.0, 2.0, 3.0])
    half = 0.95 * math.sqrt(2 / (1 - 0.95**2)) / math.sqrt(3)
    assert difference.interval == pytest.approx((2 - half, 2 + half))
    assert t_interval(2.0, 1.0, 3, 0.90) == pytest.approx(
        (2 - 0.9 * math.sqrt(2 / 0.19) / math.sqrt(3), 2 + 0.9 * math.sqrt(2 / 0.19) / math.sqrt(3))
    )


def test_equal_differences_leave_no_doubt() -> None:
    difference = summarise([0.5, 0.5, 0.5])
    assert (difference.interval, difference.t_test, difference.could_see()) == ((0.5, 0.5), 0.0, 0.0)
    assert summarise([0.0, 0.0, 0.0]).t_test == 1.0


@pytest.mark.parametrize(("number", "one", "twenty"), [(3, 3.26, 14.6), (5, 1.68, 3.8), (9, 1.07, 1.8)])
def test_detectable_effects_are_those_of_the_noncentral_t(number: int, one: float, twenty: float) -> None:
    assert detectable(number) == pytest.approx(one, abs=0.005)
    assert detectable(number, 20) == pytest.approx(twenty, abs=0.05)
    for num_tests in (1, 20):
        effect = detectable(number, num_tests)
        critical = stats.t.isf(0.05 / num_tests / 2, number - 1)
        assert stats.nct.sf(critical, number - 1, effect * math.sqrt(number)) == pytest.approx(0.8, abs=1e-4)
    assert summarise([1.0, 2.0, 3.0]).could_see() == pytest.approx(3.264, abs=0.001)


def test_a_detectable_effect_is_seen_four_times_in_five() -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(detectable(5), 1.0, (20_000, 5))
    seen = stats.ttest_1samp(samples, 0.0, axis=1).pvalue < 0.05
    assert np.mean(seen) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(("number", "both", "one"), [(3, 2.66, 2.30), (5, 1.60, 1.36), (9, 1.07, 0.91)])
def test_the_margin_at_which_equality_is_shown_four_times_in_five(number: int, both: float, one: float) -> None:
    assert margin_needed(number) == pytest.approx(both, abs=0.005)
    assert margin_needed(number, one_sided=True) == pytest.approx(one, abs=0.005)
    samples = np.random.default_rng(1).normal(0.0, 1.0, (20_000, number))
    means = samples.mean(1)
    half = stats.t.isf(0.05, number - 1) * samples.std(1, ddof=1) / math.sqrt(number)
    assert np.mean(np.abs(means) + half < margin_needed(number)) == pytest.approx(0.8, abs=0.01)
    assert np.mean(means - half > -margin_needed(number, one_sided=True)) == pytest.approx(0.8, abs=0.01)


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


def test_the_test_is_scipys() -> None:
    first = dict(enumerate([0.71, 0.68, 0.74, 0.70]))
    second = dict(enumerate([0.69, 0.69, 0.70, 0.66]))
    difference = compare_pairs(first, second)
    assert difference.t_test == pytest.approx(stats.ttest_rel(list(first.values()), list(second.values())).pvalue)
