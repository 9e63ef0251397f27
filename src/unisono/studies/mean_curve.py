"""Curves of a metric over the course of runs that differ by their seed: mean and deviation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from unisono.studies.history import History
from unisono.studies.results import Results
from unisono.studies.study import Axis


def mean_curve(results: Results, metric: str, variant: str, setting: str, axis: Axis) -> list[tuple[float, float, float]]:
    """Return place, mean and deviation over seeds, at the rounds that all seeds of a cell have.

    Args:
        results: of the study.
        metric: what is drawn.
        variant: whose runs.
        setting: of these.
        axis: what the curve goes over; places are means over seeds too.
    """
    alias = {v.name: v.metrics for v in results.study.variants}.get(variant, {})
    histories = [run.history for run in results.finished(variant, setting) if run.history]
    return mean_over_seeds(histories, alias.get(metric, metric), axis)


def mean_over_seeds(histories: Sequence[History], metric: str, axis: Axis) -> list[tuple[float, float, float]]:
    """Return place, mean and deviation of a metric, at the rounds after which all runs have it.

    Args:
        histories: of runs that differ by their seed; those that never log the metric are left out.
        metric: what is drawn.
        axis: what the curve goes over. Rounds tell which values belong together, since one round may lie at another place
            of the axis for every seed; the place is the mean of these.
    """
    curves = [curve for history in histories if (curve := _by_round(history, metric, axis))]
    points = []
    for round in sorted(set.intersection(*map(set, curves)) if curves else ()):
        places, values = zip(*(curve[round] for curve in curves), strict=True)
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        points.append((statistics.fmean(places), statistics.fmean(values), deviation))
    return points


def _by_round(history: History, metric: str, axis: Axis) -> dict[float, tuple[float, float]]:
    """Return place and value by the number of rounds done."""
    places = {float(record["rounds"]): record.get(axis) for record in history.records}
    values = history.curve(metric, "rounds")
    return {round: (float(place), value) for round, value in values if (place := places[round]) is not None}
