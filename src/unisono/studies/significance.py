"""Paired tests of whether two columns of numbers with the same seeds differ, and a correction for many tests."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST_PAIRS = 3
"""Fewer seeds say nothing about the spread of differences."""


@dataclass(frozen=True)
class Difference:
    """Difference between two groups of runs, over the seeds that both have.

    Args:
        mean: of the differences.
        deviation: of the differences, as of a sample; None for one pair.
        num_pairs: seeds that both have.
        t_test: two-sided p-value of the paired t-test; None where nothing can be said.
        wilcoxon: two-sided p-value of Wilcoxon's signed-rank test, exact; None where nothing can be said.
        reason: why nothing can be said; empty otherwise.
    """

    mean: float | None
    deviation: float | None
    num_pairs: int
    t_test: float | None = None
    wilcoxon: float | None = None
    reason: str = ""


def compare_pairs(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    """Return ``first`` minus ``second``, paired by seed.

    The t-test supposes that differences are normal, which a handful of seeds cannot show; Wilcoxon's test does not, but cannot
    go below 2 / 2^n for n pairs, so it needs six seeds to reach 0.05.

    Args:
        first: values by seed.
        second: the same of the group to compare with.
    """
    seeds = sorted(first.keys() & second.keys())
    differences = [first[seed] - second[seed] for seed in seeds]
    mean = statistics.fmean(differences) if differences else None
    deviation = statistics.stdev(differences) if len(differences) > 1 else None
    if len(seeds) < LEAST_PAIRS:
        reason = f"fewer than {LEAST_PAIRS} seeds in common"
        return Difference(mean, deviation, len(seeds), reason=reason)
    if max(differences) == min(differences):
        return Difference(mean, deviation, len(seeds), reason="the same differences for all seeds")
    from scipy import stats

    t_test = float(stats.ttest_rel([first[seed] for seed in seeds], [second[seed] for seed in seeds]).pvalue)
    wilcoxon = float(stats.wilcoxon(differences, method="exact" if 0.0 not in differences else "auto").pvalue)
    return Difference(mean, deviation, len(seeds), t_test, wilcoxon)


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
