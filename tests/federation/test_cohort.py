"""Cohorts depend on (seed, round, attempt) alone, have the size they promise, and respect who can be reached."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.federation.cohort import CohortConfig, draw_cohort, reachable_clients

ROUNDS = [Context(3, round) for round in range(400)]


@given(st.integers(1, 50), st.floats(0.01, 1), st.integers(0, 2**32), st.integers(0, 5))
def test_a_fixed_cohort_has_its_size_and_no_client_twice(num_clients: int, share: float, seed: int, attempt: int) -> None:
    config = CohortConfig(participation=share)
    cohort = draw_cohort(config, num_clients, Context(seed), attempt)
    assert len(cohort) == config.expected_size(num_clients) == max(1, round(share * num_clients))
    assert cohort == sorted(set(cohort))
    assert 0 <= cohort[0] <= cohort[-1] < num_clients
    assert cohort == draw_cohort(config, num_clients, Context(seed), attempt)


def test_everyone_is_asked_where_the_config_says_nothing() -> None:
    assert draw_cohort(CohortConfig(), 5, Context(0)) == [0, 1, 2, 3, 4]


def test_size_replaces_participation_and_must_fit() -> None:
    config = CohortConfig(size=3, participation=0.9)
    assert config.expected_size(10) == 3
    with pytest.raises(UserError, match=r"cohort\.size must be at most the number of clients, 2, got 3"):
        draw_cohort(config, 2, Context(0))


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_rounds_attempts_and_seeds_give_other_cohorts(sampling: str) -> None:
    config = CohortConfig(size=10, sampling=sampling)  # type: ignore[arg-type]
    draws = [
        draw_cohort(config, 100, Context(0, 1)),
        draw_cohort(config, 100, Context(0, 1), attempt=1),
        draw_cohort(config, 100, Context(0, 2)),
        draw_cohort(config, 100, Context(1, 1)),
    ]
    assert len({tuple(draw) for draw in draws}) == 4


def test_fixed_sampling_asks_every_client_equally_often() -> None:
    """Over 400 rounds of 3 out of 10 a count has mean 120 and standard deviation sqrt(400 * 0.3 * 0.7) = 9.2."""
    counts = np.bincount(np.concatenate([draw_cohort(CohortConfig(size=3), 10, ctx) for ctx in ROUNDS]), minlength=10)
    assert np.all(np.abs(counts - 120) < 5 * 9.2)


def test_poisson_cohorts_have_the_mean_and_variance_of_a_binomial() -> None:
    """Sizes are Binomial(50, 0.2): mean 10, variance 8; the mean of 400 has standard error sqrt(8 / 400) = 0.14."""
    config = CohortConfig(size=10, sampling="poisson")
    cohorts = [draw_cohort(config, 50, ctx) for ctx in ROUNDS]
    sizes = np.array([len(cohort) for cohort in cohorts])
    assert abs(sizes.mean() - 10) < 5 * 0.14
    assert 5.5 < sizes.var() < 10.5
    assert all(cohort == sorted(set(cohort)) for cohort in cohorts)


def test_poisson_coins_do_not_depend_on_who_else_is_reachable() -> None:
    """A client takes part with chance 0.5 * 0.2: sizes have mean 5, standard error sqrt(4.5 / 400) = 0.11."""
    config = CohortConfig(size=10, sampling="poisson", availability="bernoulli", availability_rate=0.5)
    sizes = [len(draw_cohort(config, 50, ctx)) for ctx in ROUNDS]
    assert abs(np.mean(sizes) - 5) < 5 * 0.11


def test_bernoulli_availability_has_its_rate() -> None:
    """8000 coins of 0.7: standard error sqrt(0.21 / 8000) = 0.005."""
    config = CohortConfig(availability="bernoulli", availability_rate=0.7)
    shares = [len(reachable_clients(config, 20, ctx)) / 20 for ctx in ROUNDS]
    assert abs(np.mean(shares) - 0.7) < 5 * 0.0052


def test_the_same_clients_are_reachable_at_every_attempt() -> None:
    config = CohortConfig(availability="bernoulli", availability_rate=0.5, size=20)
    cohorts = [draw_cohort(config, 20, Context(0, 4), attempt) for attempt in range(3)]
    assert cohorts[0] == cohorts[1] == cohorts[2] == reachable_clients(config, 20, Context(0, 4)).tolist()
    assert len(cohorts[0]) < 20


def test_a_cohort_holds_reachable_clients_only() -> None:
    for sampling in ("fixed", "poisson"):
        config = CohortConfig(availability="bernoulli", availability_rate=0.3, size=10, sampling=sampling)
        for ctx in ROUNDS[:50]:
            assert set(draw_cohort(config, 20, ctx)) <= set(reachable_clients(config, 20, ctx).tolist())


def test_nobody_reachable_gives_an_empty_cohort() -> None:
    config = CohortConfig(availability="bernoulli", availability_rate=1e-9, size=2)
    assert draw_cohort(config, 4, Context(0)) == []


def test_diurnal_clients_follow_the_day() -> None:
    """With rate 0.5 nothing is cut: over a day the mean is 0.5, and the same hour of every day has the same chance.

    Clients spread over all time zones, so the share at each hour is near 0.5, while one client's chance runs from 0 to 1.
    """
    config = CohortConfig(availability="diurnal", availability_rate=0.5, day_length=8)
    seen = np.zeros((400, 300), bool)
    for round, ctx in enumerate(ROUNDS):
        seen[round, reachable_clients(config, 300, ctx)] = True
    assert abs(seen.mean() - 0.5) < 0.02
    by_hour = seen.reshape(50, 8, 300).mean(axis=0)
    assert np.all(by_hour.max(axis=0) > 0.8)
    assert np.all(by_hour.min(axis=0) < 0.2)
    zones = Context(3).numpy_rng("time zones").random(300)
    expected = 0.5 * (1 + np.sin(2 * np.pi * (np.arange(8)[:, None] / 8 + zones)))
    assert np.abs(by_hour - expected).max() < 0.35
    assert abs((by_hour - expected).mean()) < 0.01


def test_only_clients_that_are_present_are_asked() -> None:
    config = CohortConfig(size=3)
    for round in range(10):
        cohort = draw_cohort(config, 10, Context(0, round), present=[1, 4, 5, 8])
        assert len(cohort) == 3
        assert set(cohort) <= {1, 4, 5, 8}
    assert draw_cohort(config, 10, Context(0), present=[2]) == [2]
    assert draw_cohort(config, 10, Context(0), present=range(10)) == draw_cohort(config, 10, Context(0))


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_only_the_named_clients_take_part(sampling: str) -> None:
    """One client of the partition that trains alone, and two of five of which a round asks one."""
    alone = CohortConfig(only=(3,), sampling=sampling)  # type: ignore[arg-type]
    assert alone.expected_size(5) == 1
    assert {tuple(draw_cohort(alone, 5, ctx)) for ctx in ROUNDS} == {(3,)}
    assert reachable_clients(alone, 5, Context(0)).tolist() == [3], "phases that ask everyone ask it alone"
    two = CohortConfig(only=(1, 4), participation=0.5)
    assert two.expected_size(5) == 1
    assert {tuple(draw_cohort(two, 5, ctx)) for ctx in ROUNDS} == {(1,), (4,)}


def test_only_names_clients_that_there_are() -> None:
    with pytest.raises(UserError, match=r"cohort\.only names client 5, and the 5 clients have the numbers 0 to 4"):
        CohortConfig(only=(0, 5)).expected_size(5)
    with pytest.raises(UserError, match=r"ask fewer or name more in cohort\.only"):
        CohortConfig(only=(0, 1), size=3).expected_size(5)
