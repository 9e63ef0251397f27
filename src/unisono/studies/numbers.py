"""The numbers of a study that claims are judged by: a few values per cell and seed, floors, and a hash of the options.

They are the part ``cells`` of ``results.json``. A copy without the rest is small enough to be kept beside the documentation.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from unisono.config import resolve
from unisono.core.errors import UserError
from unisono.evaluation.floors import PIXELS, UNTRAINED
from unisono.runs.directory import RunDirectory
from unisono.studies.grid import Cell
from unisono.studies.history import History, logged_name, parse_time_to_target
from unisono.studies.runner import comparable

FORMAT = 1
"""Version of the format of numbers that this program reads and writes."""
DIGITS = 6
"""Significant digits that are kept."""
HASH_LENGTH = 12
DIVERGED, FEWER_CLUSTERS = "diverged", "had fewer global clusters than asked for"


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of a study.

    Args:
        cell: its place in the study.
        history: its records.
        values: the study's metrics.
    """

    cell: Cell
    history: History
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class CellNumbers:
    """Numbers of one variant under one setting; lists have a value per seed, None where there is none.

    Args:
        variant: name.
        setting: name.
        seeds: of the finished runs.
        config: hash of the options, whatever the seed.
        values: by metric.
        unreached: by metric such as ``rounds to knn 0.6``, for runs that never got there: the end of the run.
        floors: by floor and metric.
        looks: by metric and round, where the study draws curves.
        problems: what is wrong with a run, by seed.
        seconds: by the clock, of the run's rounds; 0 for a copy of another study's run.
    """

    variant: str
    setting: str
    seeds: Sequence[int]
    config: str = ""
    values: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    unreached: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    floors: Mapping[str, Mapping[str, Sequence[float | None]]] = field(default_factory=dict)
    looks: Mapping[str, Mapping[str, Sequence[float | None]]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    seconds: Sequence[float] = ()

    def by_seed(self, metric: str, round: str | None = None) -> dict[int, float]:
        """Return the values of a metric by seed; a run that never got there counts with its end.

        Args:
            metric: its name.
            round: a looked-at round; None for the end of the run.
        """
        own = self.values.get(metric, ()) if round is None else self.looks.get(metric, {}).get(round, ())
        found = dict(zip(self.seeds, self.unreached.get(metric, ()), strict=False)) if round is None else {}
        found |= {seed: value for seed, value in zip(self.seeds, own, strict=False) if value is not None}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, metric: str) -> float | None:
        """Return the mean over seeds; None without a value."""
        values = self.by_seed(metric)
        return statistics.fmean(values.values()) if values else None

    def floor(self, name: str, metric: str) -> float | None:
        """Return a floor as the runs measured it, the mean over seeds; None where none did."""
        known = [value for value in self.floors.get(name, {}).get(metric, ()) if value is not None]
        return (known[0] if len(set(known)) == 1 else statistics.fmean(known)) if known else None

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as JSON, without what is empty."""
        return {name: value for name, value in asdict(self).items() if value or name in ("variant", "setting", "seeds")}


@dataclass(frozen=True)
class Numbers:
    """Numbers of a study at one scale.

    Args:
        study: its name.
        scale: of these numbers.
        cells: by variant and setting.
    """

    study: str
    scale: str
    cells: Mapping[tuple[str, str], CellNumbers]

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as JSON."""
        cells = [cell.as_json() for cell in self.cells.values()]
        return {"format": FORMAT, "study": self.study, "scale": self.scale, "cells": cells}


def read_numbers(path: Path) -> Numbers:
    """Return the numbers of a file, ``results.json`` or a copy of its numbers; raise a UserError if it holds none."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if tree.get("format", FORMAT) != FORMAT:
            raise UserError(f"{path} has format {tree['format']}, and this unisono reads format {FORMAT}.")
        cells = [_read_cell(values) for values in tree["cells"]]
        return Numbers(tree["study"], tree["scale"], {(cell.variant, cell.setting): cell for cell in cells})
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} holds no results of a study: {type(error).__name__}: {error}.") from error


def _read_cell(tree: dict[str, Any]) -> CellNumbers:
    """Return the numbers of a cell; a floor that is one number, as it used to be, is that of every seed."""
    floors = {
        floor: {metric: value if isinstance(value, list) else [value] * len(tree["seeds"]) for metric, value in scores.items()}
        for floor, scores in tree.get("floors", {}).items()
    }
    return CellNumbers(**{**tree, "floors": floors})


def cell_numbers(runs: Sequence[FinishedRun], metrics: Mapping[str, str], curves: bool) -> CellNumbers:
    """Return the numbers of the finished runs of one variant and setting.

    Args:
        runs: one for each seed.
        metrics: this variant's name for every metric of the study.
        curves: whether looked-at rounds are kept.
    """
    cell = runs[0].cell
    logged = {logged_name(metric): logged_name(name) for metric, name in metrics.items()}
    values = {metric: [_kept(run.history.value(name)) for run in runs] for metric, name in logged.items()}
    values |= {metric: [_kept(run.values[metric]) for run in runs] for metric in metrics}
    ends = {metric: [_end(run, metric) for run in runs] for metric in metrics}
    problems = {str(run.cell.seed): problem for run in runs if (problem := _problem(run))}
    return CellNumbers(
        cell.variant,
        cell.setting,
        [run.cell.seed for run in runs],
        config_hash(cell),
        values,
        {metric: end for metric, end in ends.items() if any(value is not None for value in end)},
        _floors(runs, logged),
        {metric: _looks(runs, name) for metric, name in logged.items()} if curves else {},
        problems,
        [_seconds(run) for run in runs],
    )


def config_hash(cell: Cell) -> str:
    """Return a hash of the options of a cell that differ from their defaults, but for the seed and for places on the disk."""
    config = cell.config()
    usual = defaults(config.method_name)
    options = {name: value for name, value in comparable(config.as_tree()).items() if value != usual.get(name)}
    options.pop("run.seed", None)
    options["method.name"] = config.method_name
    own = f"seed-{cell.seed}"
    neutral = {
        name: Path(value).name.replace(own, "seed") if isinstance(value, str) and "/" in value else value
        for name, value in options.items()
    }
    neutral["untrained"] = cell.untrained
    text = json.dumps(neutral, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


@cache
def defaults(method: str) -> Mapping[str, Any]:
    """Return the default of every option that may change a number, by its full name."""
    return comparable(resolve({"method": {"name": method}}).as_tree())


def _kept(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def _end(run: FinishedRun, metric: str) -> float | None:
    """Return where a run ended that never reached the value: one round more than it had, or the last place on another axis."""
    target = parse_time_to_target(metric)
    if target is None or not run.history.records or run.values[metric] is not None:
        return None
    last = run.history.records[-1].get(target.axis)
    return None if last is None else _kept(float(last) + (target.axis == "rounds"))


def _seconds(run: FinishedRun) -> float:
    copied = "copied_from" in RunDirectory(run.cell.path).read_json("status.json")
    return 0.0 if copied else round(run.history.seconds, 1)


def _problem(run: FinishedRun) -> str:
    records = run.history.records
    if not all(math.isfinite(record["loss"]) for record in records if record.get("loss") is not None):
        return DIVERGED
    wanted = getattr(run.cell.config().method, "num_global_clusters", None)
    numbers = [record["num_global_clusters"] for record in records if record.get("num_global_clusters") is not None]
    return FEWER_CLUSTERS if wanted is not None and numbers and min(numbers) < wanted else ""


def _floors(runs: Sequence[FinishedRun], names: Mapping[str, str]) -> dict[str, dict[str, list[float | None]]]:
    measured = [RunDirectory(run.cell.path).floors for run in runs]
    found: dict[str, dict[str, list[float | None]]] = {}
    # A run that goes on from another's encoder measures that encoder before its first round, which is not untrained.
    begun = any(run.cell.config().model.pretrained for run in runs)
    for floor in (PIXELS,) if begun else (PIXELS, UNTRAINED):
        for metric, name in names.items():
            scores = [_kept(floors.get(floor, {}).get(name)) for floors in measured]
            if any(score is not None for score in scores):
                found.setdefault(floor, {})[metric] = scores
    return found


def _looks(runs: Sequence[FinishedRun], metric: str) -> dict[str, list[float | None]]:
    curves = [dict(run.history.curve(metric, "rounds")) for run in runs]
    rounds = sorted({round for curve in curves for round in curve})
    return {str(int(round)): [_kept(curve.get(round)) for curve in curves] for round in rounds}
