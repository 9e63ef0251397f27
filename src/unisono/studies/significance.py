"""The rule of comparison: paired differences, their t interval, and the smallest effect that the seeds could have shown.

Runs of one seed share partition and cohorts, so they are compared seed by seed. SciPy is imported where it is needed, for it
takes longer to load than most commands take.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

LEAST_PAIRS = 3
"""Fewer seeds say nothing about the spread of differences."""
ALPHA = 0.05
"""Chance of a false alarm that is put up with."""
POWER = 0.8
"""Chance with which the smallest effect that 'could be seen' is seen."""
RULE = (
    "Differences are paired by seed; the interval is the t interval at 95%. 'Could see' is the smallest true difference "
    "that as many seeds would have shown with a chance of 80%."
)


@dataclass(frozen=True)
class Difference:
    """Difference between two groups of runs, over the seeds that both have.

    Args:
        mean: of the differences.
        deviation: of the differences, as of a sample; None for one pair.
        num_pairs: seeds that both have.
        interval: ends of the t interval at 95%; None where nothing can be said.
        t_test: two-sided p-value of the paired t-test; None where nothing can be said.
        reason: why nothing can be said; empty otherwise.
    """

    mean: float | None
    deviation: float | None
    num_pairs: int
    interval: tuple[float, float] | None = None
    t_test: float | None = None
    reason: str = ""

    def could_see(self, num_tests: int = 1) -> float | None:
        """Return the smallest true difference that would have been seen; None where nothing can be said.

        Args:
            num_tests: p-values that are corrected together.
        """
        if self.deviation is None or self.interval is None:
            return None
        return detectable(self.num_pairs, num_tests) * self.deviation


def compare_pairs(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    """Return ``first`` minus ``second``, paired by seed.

    The t-test supposes that differences are normal, which a handful of seeds cannot show.

    Args:
        first: values by seed.
        second: the same of the group to compare with.
    """
    return summarise([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())])


def summarise(differences: Sequence[float]) -> Difference:
    """Return mean, deviation, interval and p-value of paired differences.

    Differences that are the same for all seeds leave no doubt: the interval is that one number.
    """
    number = len(differences)
    mean = statistics.fmean(differences) if differences else None
    deviation = statistics.stdev(differences) if number > 1 else None
    if mean is None or deviation is None or number < LEAST_PAIRS:
        return Difference(mean, deviation, number, reason=f"fewer than {LEAST_PAIRS} seeds in common")
    low, high = t_interval(mean, deviation, number)
    return Difference(mean, deviation, number, (low, high), p_value(mean, deviation, number))


def t_interval(mean: float, deviation: float, number: int, level: float = 0.95) -> tuple[float, float]:
    """Return the ends of the t interval of a mean.

    Args:
        mean: of a sample.
        deviation: its standard deviation, as of a sample.
        number: of values.
        level: chance that the interval holds the true mean.
    """
    half = _t_quantile(number - 1, (1 + level) / 2) * deviation / math.sqrt(number)
    return mean - half, mean + half


def p_value(mean: float, deviation: float, number: int) -> float:
    """Return the two-sided p-value of the t-test against 0; 0 or 1 where the values do not vary."""
    if deviation == 0:
        return 1.0 if mean == 0 else 0.0
    from scipy import stats

    return float(2 * stats.t.sf(abs(mean) / deviation * math.sqrt(number), number - 1))


@cache
def detectable(number: int, num_tests: int = 1) -> float:
    """Return the smallest true mean, in deviations of the differences, that a two-sided t-test sees with a chance of 80%.

    Args:
        number: of seeds.
        num_tests: p-values that Holm corrects together; the smallest of them must be below 0.05 / num_tests.
    """
    from scipy import stats

    critical = _t_quantile(number - 1, 1 - ALPHA / num_tests / 2)

    def power(effect: float) -> float:
        return float(stats.nct.sf(critical, number - 1, effect * math.sqrt(number)))

    return _where(power, POWER)


@cache
def margin_needed(number: int, one_sided: bool = False) -> float:
    """Return the margin, in deviations of the differences, at which equality is shown with a chance of 80% where it is true.

    Equality is shown if the interval at 90% lies within the margin.

    Args:
        number: of seeds.
        one_sided: whether one end of the interval counts only.
    """
    from scipy import integrate, stats

    freedom = number - 1
    critical = _t_quantile(freedom, 1 - ALPHA)

    def power(margin: float) -> float:
        end = margin * math.sqrt(number)
        if one_sided:
            return float(stats.nct.sf(critical, freedom, end))

        def part(deviation: float) -> float:  # the mean must lie within margin - critical x deviation / sqrt(number)
            density = 2 * freedom * deviation * stats.chi2.pdf(freedom * deviation**2, freedom)
            return float(density * (2 * stats.norm.cdf(end - critical * deviation) - 1))

        return float(integrate.quad(part, 0, end / critical)[0])

    return _where(power, POWER)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return P-values corrected for their number (Holm 1979): the chance of one false alarm among all stays as stated.

    Args:
        p_values: None where there is none; such are not counted.
    """
    known = sorted((value, place) for place, value in enumerate(p_values) if value is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (value, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * value))
        corrected[place] = highest
    return corrected


def _t_quantile(freedom: int, share: float) -> float:
    from scipy import stats

    return float(stats.t.ppf(share, freedom))


def _where(power: Callable[[float], float], wanted: float) -> float:
    """Return the place at which a rising function reaches a value."""
    from scipy import optimize

    high = 1.0
    while power(high) < wanted:
        high *= 2
    return float(optimize.brentq(lambda place: power(place) - wanted, 0.0, high, xtol=1e-6))
