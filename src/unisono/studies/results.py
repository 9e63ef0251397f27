"""The results of a study, read from its run directories: every run, and mean and deviation over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unisono.evaluation.floors import PIXELS, UNTRAINED
from unisono.runs.directory import RunDirectory
from unisono.studies.grid import Cell
from unisono.studies.history import History, in_percent, parse_time_to_target
from unisono.studies.numbers import FinishedRun, Numbers, cell_numbers
from unisono.studies.runner import CellStatus, status_of
from unisono.studies.study import Study

VOID_RULE = "(void): not above raw pixels and untrained weights, so no claim rests on it."


@dataclass(frozen=True)
class Summary:
    """Values of a metric over seeds.

    Args:
        values: one for each seed that has one, in the order of seeds.
        num_runs: finished runs, those that never reached the value included.
        standard_error: whether ± is the standard error of the mean and not the standard deviation.
    """

    values: Sequence[float]
    num_runs: int
    standard_error: bool = False

    @property
    def mean(self) -> float | None:
        """Mean over seeds; None without a value."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds, as of a sample; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def spread(self) -> float | None:
        """The number behind ±: the standard deviation, or the standard error of the mean; None for fewer than two values."""
        deviation = self.deviation
        return deviation / math.sqrt(len(self.values)) if self.standard_error and deviation is not None else deviation


@dataclass(frozen=True)
class CellResult:
    """Result of one cell.

    Args:
        cell: which.
        status: where it stands.
        history: its records; empty for one that is not finished.
        values: the study's metrics at the end; None where the run has none.
        reason: why it failed, empty where it did not.
    """

    cell: Cell
    status: CellStatus
    history: History | None
    values: Mapping[str, float | None]
    reason: str = ""


@dataclass(frozen=True)
class Results:
    """All outcomes of a study.

    Args:
        study: theirs.
        cell_results: one for each cell.
    """

    study: Study
    cell_results: Sequence[CellResult]
    by_place: Mapping[tuple[str, str], Sequence[CellResult]] = field(init=False)

    def __post_init__(self) -> None:
        by_place: dict[tuple[str, str], list[CellResult]] = {}
        for cell_result in self.cell_results:
            by_place.setdefault((cell_result.cell.variant, cell_result.cell.setting), []).append(cell_result)
        object.__setattr__(self, "by_place", by_place)

    def finished(self, variant: str, setting: str) -> list[CellResult]:
        """Return the finished runs of a cell, one for each seed."""
        return [cell_result for cell_result in self.by_place.get((variant, setting), []) if cell_result.history is not None]

    def summary(self, metric: str, variant: str, setting: str) -> Summary:
        """Return a metric over seeds."""
        runs = self.finished(variant, setting)
        values = [value for run in runs if (value := run.values[metric]) is not None]
        return Summary(values, len(runs), self.study.config.spread == "standard error")

    def floors(self, metric: str) -> dict[str, dict[str, float]]:
        """Return the scores of the floors by floor and setting, as the first finished run of the setting has them.

        Runs of a setting share their data. A study with a row of untrained weights needs no floor of that name.
        """
        found: dict[str, dict[str, float]] = {}
        for (_, setting), cell_results in self.by_place.items():
            for cell_result in cell_results:
                for name, scores in RunDirectory(cell_result.cell.path).floors.items():
                    if metric in scores and name not in self.study.row_names:
                        found.setdefault(name, {}).setdefault(setting, scores[metric])
        return found

    def numbers(self) -> Numbers:
        """Return the numbers that claims are judged by."""
        study, curves = self.study, self.study.config.plot == "curves"
        cells = {}
        for (variant, setting), found in self.by_place.items():
            runs = [FinishedRun(one.cell, one.history, one.values) for one in found if one.history is not None]
            if runs:
                cells[variant, setting] = cell_numbers(runs, study.metric_names(variant), curves)
        return Numbers(study.name, study.config.scale, cells)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON, for other programs."""
        study = self.study
        config = study.config
        about = {name: getattr(config, name) for name in ("title", "claim", "source", "scale", "cost")}
        summaries = []
        for variant in study.row_names:
            for setting in study.setting_names:
                for metric in config.metrics:
                    summary = self.summary(metric, variant, setting)
                    summaries.append(
                        {
                            "variant": variant,
                            "setting": setting,
                            "metric": metric,
                            "mean": summary.mean,
                            "deviation": summary.deviation,
                            "values": list(summary.values),
                            "runs": summary.num_runs,
                            "paper": study.paper_number(metric, variant, setting),
                        }
                    )
        return {
            "study": study.name,
            **about,
            "results": summaries,
            "floors": {metric: self.floors(metric) for metric in config.metrics},
            "runs": [_run_as_json(cell_result) for cell_result in self.cell_results],
            "cells": self.numbers().as_json()["cells"],
        }


def collect(study: Study, cells: Iterable[Cell], failures: Mapping[Cell, str] | None = None) -> Results:
    """Read the run directories of these cells.

    Args:
        study: theirs.
        cells: finished or not.
        failures: reasons of those that failed just now.
    """
    found = [(cell, status_of(cell.path)) for cell in cells]
    histories = {cell: History(cell.path) for cell, status in found if status is CellStatus.finished}
    cell_results = []
    for cell, status in found:
        history, targets = histories.get(cell), _targets(study, cell, histories)
        names = study.metric_names(cell.variant).items()
        values = {metric: history.value(name, targets.get(name)) if history else None for metric, name in names}
        cell_results.append(CellResult(cell, status, history, values, (failures or {}).get(cell, "")))
    return Results(study, cell_results)


def _targets(study: Study, cell: Cell, histories: Mapping[Cell, History]) -> dict[str, float]:
    """Return what ``steps to 50% of linear`` has to reach for a cell: a share of the way from its peers' first to best value.

    Peers have the same recipe, setting and seed; they differ by their variant, and begin with the same weights.
    """
    found = {}
    for name in study.metric_names(cell.variant).values():
        target = parse_time_to_target(name)
        if target is not None and target.relative:
            peers = [run for other, run in histories.items() if _key(other) == _key(cell) and not other.untrained]
            curves = [curve for run in peers if (curve := run.curve(target.metric, target.axis))]
            low = statistics.fmean([curve[0][1] for curve in curves]) if curves else 0.0
            high = max((value for curve in curves for _, value in curve), default=0.0)
            found[name] = low + target.value * (high - low)
    return found


def _key(cell: Cell) -> tuple[str, str, int]:
    return cell.reference, cell.setting, cell.seed


def number(value: float | str | None, metric: str) -> str:
    """Return a number as people read it: accuracies in percent, others with four digits, an empty string for None."""
    if value is None or isinstance(value, str):
        return value or ""
    if in_percent(metric):
        return f"{100 * value:.1f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def signed(value: float, metric: str) -> str:
    """Return a difference as people read it, with its sign."""
    return f"{'-' if value < 0 else '+'}{number(abs(value), metric)}"


def with_deviation(mean: float, deviation: float | None, metric: str) -> str:
    """Return text such as ``71.2 ± 0.5``; what is not in percent has as many digits as two of the deviation's."""
    if deviation is None:
        return number(mean, metric)
    if in_percent(metric) or deviation <= 0 or not math.isfinite(deviation):
        return f"{number(mean, metric)} ± {number(deviation, metric)}"
    digits = max(0, 1 - math.floor(math.log10(deviation)))
    return f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"


def mean_and_deviation(summary: Summary, metric: str) -> str:
    """Return text such as ``71.2 ± 0.5``, with the number of runs that have a value where not all do, empty where none has."""
    if summary.num_runs == 0:
        return ""
    if summary.mean is None:
        return "not reached" if parse_time_to_target(metric) else ""
    text = with_deviation(summary.mean, summary.spread, metric)
    return text if len(summary.values) == summary.num_runs else f"{text} ({len(summary.values)} of {summary.num_runs})"


def marked(text: str, mean: float | None, floors: Mapping[str, float | None]) -> str:
    """Return the text of a cell, with a mark if its mean is not above raw pixels and untrained weights."""
    known = [value for name in (PIXELS, UNTRAINED) if (value := floors.get(name)) is not None]
    return f"{text} (void)" if text and mean is not None and known and mean <= max(known) else text


def _run_as_json(cell_result: CellResult) -> dict[str, Any]:
    cell, history = cell_result.cell, cell_result.history
    return {
        "variant": cell.variant,
        "setting": cell.setting,
        "seed": cell.seed,
        "run": cell.path.name,
        "status": str(cell_result.status),
        "reason": cell_result.reason,
        "seconds": history.seconds if history else None,
        "metrics": dict(cell_result.values),
        "probes": history.probes() if history else {},
    }
