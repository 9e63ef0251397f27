"""Correlation between two metrics over runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from unisono.studies.results import Results


def pairs_of(results: Results, first: str, second: str, variants: Sequence[str]) -> list[tuple[float, float]]:
    """Return two metrics of every finished run of these variants."""
    values = [cell_result.values for cell_result in results.cell_results if cell_result.cell.variant in variants]
    pairs = [(one.get(first), one.get(second)) for one in values]
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Pearson's R; None for fewer than three points or where one metric does not vary."""
    if len(pairs) < 3:
        return None
    try:
        return statistics.correlation(*zip(*pairs, strict=True))
    except statistics.StatisticsError:
        return None


def correlations(results: Results, first: str, second: str) -> str:
    """Return Pearson's R of two metrics over all runs, and over those of each variant."""
    names = [name for name in results.study.row_names if pairs_of(results, first, second, [name])]
    found = {name: correlation(pairs_of(results, first, second, [name])) for name in names}
    whole = correlation(pairs_of(results, first, second, names))
    known = [r for r in found.values() if r is not None]
    words = [f"over all runs {_in_words(whole)}", *(f"{name} {_in_words(r)}" for name, r in found.items())]
    if len(known) > 1:
        words.append(f"mean of these {statistics.fmean(known):.2f}")
    return f"Correlation R of {first} and {second}: {', '.join(words)}."


def _in_words(r: float | None) -> str:
    return "unknown" if r is None else f"{r:.2f}"
