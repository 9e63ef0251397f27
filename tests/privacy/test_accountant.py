import builtins
import math
import re

import pytest

from unisono.core.errors import UserError
from unisono.privacy.accountant import UserLevelAccountant

pytest.importorskip("dp_accounting")

from dp_accounting import gaussian_mechanism


def test_one_unsampled_round_lies_between_the_exact_and_the_classical_bound():
    """Exact: Balle & Wang 2018. Classical, for epsilon <= 1: sqrt(2 ln(1.25 / delta)) / noise."""
    for noise in (5.0, 10.0, 40.0):
        for delta in (1e-5, 1e-7):
            epsilon = UserLevelAccountant(noise, delta, "none", 100, 10).epsilon(1)
            exact = gaussian_mechanism.get_epsilon_gaussian(noise, delta)
            assert exact < epsilon < math.sqrt(2 * math.log(1.25 / delta)) / noise


def test_rounds_compose_like_one_round_with_less_noise():
    """Gaussian divergences add up: n rounds of noise s are one round of s / sqrt(n)."""
    many = UserLevelAccountant(8.0, 1e-5, "none", 100, 10).epsilon(16)
    assert many == pytest.approx(UserLevelAccountant(2.0, 1e-5, "none", 100, 10).epsilon(1))


def test_sampling_everyone_is_no_sampling():
    unsampled = UserLevelAccountant(3.0, 1e-5, "none", 50, 50)
    poisson = UserLevelAccountant(3.0, 1e-5, "poisson", 50, 50)
    assert poisson.epsilon(20) == pytest.approx(unsampled.epsilon(20))


def test_replacing_a_client_of_a_full_cohort_doubles_the_sensitivity():
    replaced = UserLevelAccountant(3.0, 1e-5, "fixed", 50, 50)
    halved = UserLevelAccountant(1.5, 1e-5, "none", 50, 50)
    assert replaced.epsilon(20) == pytest.approx(halved.epsilon(20))


def test_a_library_that_counts_the_doubled_sensitivity_itself_gives_the_same(monkeypatch):
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    expected = UserLevelAccountant(3.0, 1e-5, "fixed", 50, 5).epsilon(20)
    today = rdp._compute_rdp_sample_wor_gaussian
    counts_it = dp_accounting.rdp.RdpAccountant([2.0], dp_accounting.NeighboringRelation.REPLACE_ONE)
    counts_it.compose(dp_accounting.SampledWithoutReplacementDpEvent(1, 1, dp_accounting.GaussianDpEvent(1.0)))
    factor = 0.5 if counts_it.rdp[0] == 1 else 2.0
    monkeypatch.setattr(
        rdp,
        "_compute_rdp_sample_wor_gaussian",
        lambda q, noise_multiplier, orders: today(q, noise_multiplier * factor, orders),
    )
    assert UserLevelAccountant(3.0, 1e-5, "fixed", 50, 5).epsilon(20) == pytest.approx(expected)


def test_the_well_known_example():
    """DP-SGD on MNIST in the tutorial of TensorFlow Privacy: batches of 256 of 60000, noise 1.1, 60 epochs: epsilon 3.01.

    The tutorial's number is of the older conversion from Renyi divergence; the improved one of today gives about 2.6.
    """
    import dp_accounting

    accountant = UserLevelAccountant(1.1, 1e-5, "poisson", 60_000, 256)
    num_steps = 60 * 60_000 // 256
    orders, divergences = accountant._round
    older = min(d * num_steps + math.log(1e5) / (order - 1) for order, d in zip(orders, divergences, strict=True))
    assert older == pytest.approx(3.01, abs=0.01)
    tightest = dp_accounting.pld.PLDAccountant().compose(
        dp_accounting.PoissonSampledDpEvent(256 / 60_000, dp_accounting.GaussianDpEvent(1.1)), num_steps
    )
    assert tightest.get_epsilon(1e-5) < accountant.epsilon(num_steps) < older


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "none"])
def test_epsilon_grows_with_rounds_and_falls_with_noise_and_delta(sampling):
    accountant = UserLevelAccountant(1.0, 1e-5, sampling, 100, 10)
    spent = [accountant.epsilon(num_rounds) for num_rounds in (0, 1, 2, 10, 100)]
    assert spent[0] == 0
    assert spent == sorted(set(spent))
    assert UserLevelAccountant(2.0, 1e-5, sampling, 100, 10).epsilon(10) < spent[3]
    assert UserLevelAccountant(1.0, 1e-3, sampling, 100, 10).epsilon(10) < spent[3]


@pytest.mark.parametrize(("noise", "cohort_size", "num_rounds"), [(0.3, 10, 100), (1.0, 18, 1), (4.0, 18, 100)])
def test_sampling_never_harms(noise, cohort_size, num_rounds):
    poisson = UserLevelAccountant(noise, 1e-5, "poisson", 20, cohort_size).epsilon(num_rounds)
    assert poisson <= UserLevelAccountant(noise, 1e-5, "none", 20, 20).epsilon(num_rounds) * (1 + 1e-9)
    fixed = UserLevelAccountant(noise, 1e-5, "fixed", 20, cohort_size).epsilon(num_rounds)
    assert fixed <= UserLevelAccountant(noise, 1e-5, "fixed", 20, 20).epsilon(num_rounds) * (1 + 1e-9)


def test_no_noise_is_no_privacy():
    accountant = UserLevelAccountant(0.0, 1e-5, "fixed", 100, 10)
    assert accountant.epsilon(0) == 0
    assert accountant.epsilon(1) == math.inf
    assert "not differentially private" in accountant.statement(3)


def test_orders_without_convergence_do_not_warn(caplog):
    assert math.isfinite(UserLevelAccountant(1.0, 1e-5, "poisson", 10, 5).epsilon(3))
    assert not caplog.records


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ("poisson", ("adding or removing one client", "probability 0.1")),
        ("fixed", ("replacing one client", "exactly 10 of 100")),
        ("none", ("adding or removing one client", "not random")),
    ],
)
def test_the_statement_says_what_is_covered(sampling, words):
    accountant = UserLevelAccountant(2.0, 1e-5, sampling, 100, 10)
    statement = accountant.statement(7)
    for word in (*words, "Over 7 rounds", "1e-05", f"{accountant.epsilon(7):.4g}", "whole clients"):
        assert word in statement
    assert len(re.findall(r"\.(\s|$)", statement)) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier must be"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be"),
        ({"delta": 0.0}, "delta must be between"),
        ({"delta": 1.0}, "delta must be between"),
        ({"sampling": "uniform"}, "poisson, fixed, none"),
        ({"cohort_size": 101}, "between 1 and 100"),
        ({"cohort_size": 0}, "between 1 and 100"),
    ],
)
def test_mistakes_are_named(change, message):
    good = {"noise_multiplier": 1.0, "delta": 1e-5, "sampling": "fixed", "num_clients": 100, "cohort_size": 10}
    with pytest.raises(UserError, match=message):
        UserLevelAccountant(**{**good, **change})


def test_without_the_library_the_extra_is_named(monkeypatch):
    real_import = builtins.__import__

    def no_library(name, *args, **kwargs):
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_library)
    with pytest.raises(UserError, match=r"unisono\[dp\]"):
        UserLevelAccountant(1.0, 1e-5, "none", 10, 1)
