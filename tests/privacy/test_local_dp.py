from __future__ import annotations

import builtins
import math
from typing import Any

import pytest

from unisono.core.errors import UserError
from unisono.privacy import local_dp
from unisono.privacy.guarantee import KAnonymity, NoGuarantee
from unisono.privacy.local_dp import COUNT_SHARE, LocalDp

dp_accounting = pytest.importorskip("dp_accounting")


@pytest.mark.parametrize(("epsilon", "delta"), [(0.8, 1e-3), (1.0, 1e-5), (10.0, 1e-3)])
def test_counts_and_sums_share_the_budget_of_a_release(epsilon: float, delta: float) -> None:
    """Levels of pure epsilon add up; the Gaussian noise has exactly the rest (Balle & Wang 2018)."""
    budget = LocalDp(epsilon, delta, 4)
    counts = budget.num_levels * budget.count_epsilon
    sums = dp_accounting.get_epsilon_gaussian(budget.sum_deviation, delta)
    assert counts == pytest.approx(COUNT_SHARE * epsilon)
    assert counts + sums == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.8, 10.0])
def test_releases_add_up_between_the_sums_alone_and_basic_composition(epsilon: float) -> None:
    """n Gaussian releases of deviation s are one of s / sqrt(n), and all of a release is more than its sums."""
    budget = LocalDp(epsilon, 1e-3, 4)
    spent = [budget.spent(number) for number in (0, 1, 2, 5, 20)]
    assert spent == sorted(spent)
    assert spent[0] == 0
    for number, total in zip((1, 2, 5, 20), spent[1:], strict=True):
        sums = dp_accounting.get_epsilon_gaussian(budget.sum_deviation / math.sqrt(number), 1e-3)
        assert sums < total <= number * epsilon * 1.01
    assert spent[-1] < 20 * sums


def test_many_levels_of_counts_cost_no_more_than_few() -> None:
    """The counts' part of epsilon is divided among levels, and composition only gains by it."""
    assert LocalDp(1.0, 1e-3, 8).spent(10) <= LocalDp(1.0, 1e-3, 2).spent(10) * 1.01


def test_noise_to_signal() -> None:
    """Noise of norm s sqrt(dim) on a sum of num_samples / 2^levels points of norm at most 1."""
    budget = LocalDp(1.0, 1e-3, 3)
    assert budget.noise_to_signal(800, 64) == pytest.approx(budget.sum_deviation * 8 / 100)
    assert budget.noise_to_signal(0, 64) > budget.noise_to_signal(1, 64) / 2


def test_report_goes_by_client_and_says_what_it_does_not_cover() -> None:
    budget = LocalDp(1.0, 1e-3, 4)
    releases = {3: 2, 1: 1}
    numbers = budget.numbers(releases, None)
    assert numbers["centroid_epsilon"] == budget.spent(2)
    assert numbers["most_releases"] == 2
    assert budget.by_client(releases) == {1: budget.spent(1), 3: budget.spent(2)}
    statement = budget.statement(releases, None)
    assert "covers centroids, not model updates" in statement
    assert f"({budget.spent(2):.4g}, 0.001)-differentially private" in statement
    assert "simulated" in statement
    assert "simulated" not in LocalDp(1.0, 1e-3, 4, seeded=False).statement(releases, None)


def test_without_the_library_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    local_dp._sum_deviation.cache_clear()
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"needs the extra 'dp': pip install 'unisono\[dp\]'\."):
        _ = LocalDp(1.0, 1e-3, 4).sum_deviation


def test_k_anonymity_states_the_smallest_cluster() -> None:
    promise = KAnonymity(2)
    assert promise.numbers({}, 16) == {"mechanism": "k-anonymous", "enforced_k": 2, "k": 16}
    assert "at least 16 different samples" in promise.statement({}, 16)
    assert promise.statement({}, None).startswith("No centroid has left a client")
    assert NoGuarantee().numbers({}, None)["k"] == 1
