"""Results of a run: a metric at its end, over its course, at a place of its course, or the time it took to reach a value.

Besides the name of a logged number, a metric is one of:

- ``rounds to linear 0.8``: the rounds (or steps, megabytes, seconds) until the probe reached 0.8. Steps and times are
  interpolated between the evaluations before and after; rounds and megabytes are those of the first evaluation that has it.
- ``steps to 50% of linear``: until half of the way from the first evaluation to the best one of any run of the same recipe,
  setting and seed; in studies only.
- ``linear at delay 50``: the probe after 50 modelled seconds, interpolated.
- ``mean label_variance``: the mean over all rounds that have it.
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from unisono.core.errors import UserError
from unisono.evaluation.config import NEED_LABELS
from unisono.runs.directory import START_FILE, RunDirectory
from unisono.runs.evaluation import PREFIX
from unisono.studies.study import Axis

AXES: dict[Axis, str] = {
    "rounds": "rounds",
    "steps": "steps of every client",
    "megabytes": "communication [MB]",
    "seconds": "time [s]",
    "delay": "modelled time [s]",
    "transmission": "modelled transmission [s]",
}
"""Axes of a curve, and their labels. The delay is the transmission and the measured computation of the exchange."""
COUNTED: tuple[Axis, ...] = ("rounds", "megabytes")
"""Axes that a run moves along by whole rounds, so that nothing lies between two evaluations."""
PERCENT = (*NEED_LABELS, "cluster-accuracy", "nmi", "ari", "kmeans-accuracy", "kmeans-nmi", "kmeans-ari")
"""Metrics that papers print in percent."""
_NUMBER = r"[0-9.eE+-]+"
_TIME_TO_TARGET = re.compile(rf"(?P<axis>[a-z]+) to (?P<metric>\S+) (?P<value>{_NUMBER})")
_TIME_TO_SHARE = re.compile(rf"(?P<axis>[a-z]+) to (?P<value>{_NUMBER})% of (?P<metric>\S+)")
_VALUE_AT = re.compile(rf"(?P<metric>\S+) at (?P<axis>[a-z]+) (?P<value>{_NUMBER})")
_MEAN = re.compile(r"mean (?P<metric>\S+)")


@dataclass(frozen=True)
class TimeToTarget:
    """A metric such as ``rounds to linear 0.8``: the rounds, bytes or time that a run took to reach a value.

    Args:
        axis: what is counted.
        metric: what must be reached.
        value: how much of it.
        relative: whether the value is a share of the way from the first value of a study's curves to the best.
    """

    axis: Axis
    metric: str
    value: float
    relative: bool = False


@dataclass(frozen=True)
class ValueAt:
    """A metric such as ``linear at delay 50``: what a run had at a place of its course.

    Args:
        metric: what is read.
        axis: what it is read over.
        place: where.
    """

    metric: str
    axis: Axis
    place: float


def parse_time_to_target(name: str) -> TimeToTarget | None:
    """Return the parts of ``rounds to linear 0.8`` or ``steps to 50% of linear``; None for any other metric."""
    share = _TIME_TO_SHARE.fullmatch(name)
    match = share or _TIME_TO_TARGET.fullmatch(name)
    if match is None:
        return None
    axis, value = _axis_and_number(name, match)
    return TimeToTarget(axis, match["metric"], value / 100 if share else value, share is not None)


def is_relative(metric: str) -> bool:
    """Return whether the metric, such as ``steps to 50% of linear``, depends on the other runs of a study."""
    wanted = parse_time_to_target(metric)
    return wanted is not None and wanted.relative


def parse_value_at(name: str) -> ValueAt | None:
    """Return the parts of ``linear at delay 50``; None for any other metric."""
    match = _VALUE_AT.fullmatch(name)
    return None if match is None else ValueAt(match["metric"], *_axis_and_number(name, match))


def logged_name(name: str) -> str:
    """Return the number in the log that a metric of any form is made of, such as ``linear`` of ``linear at delay 50``."""
    mean = _MEAN.fullmatch(name)
    if mean is not None:
        return mean["metric"]
    found = parse_time_to_target(name) or parse_value_at(name)
    return name if found is None else found.metric


def axis_of(name: str) -> Axis | None:
    """Return the axis that a metric of two forms is measured along; None for others."""
    found = parse_time_to_target(name) or parse_value_at(name)
    return None if found is None else found.axis


def in_percent(name: str) -> bool:
    """Return whether a metric is shown times 100."""
    return parse_time_to_target(name) is None and logged_name(name) in PERCENT


def _axis_and_number(name: str, match: re.Match[str]) -> tuple[Axis, float]:
    axis = match["axis"]
    if axis not in AXES:
        raise UserError(f"The metric {name!r} counts {axis!r}; known are {', '.join(AXES)}.")
    try:
        return axis, float(match["value"])
    except ValueError as error:
        raise UserError(f"The metric {name!r} must have a number at its end, or before its %.") from error


class History:
    """The records of a run with their places on every axis.

    Args:
        path: the run directory.
    """

    def __init__(self, path: Path) -> None:
        logs = RunDirectory(path).logs
        timings = {entry["round"]: entry["seconds"] for entry in logs["timings"].read()}
        self.records: list[dict[str, Any]] = []
        if (path / START_FILE).is_file():
            start = RunDirectory(path).read_json(START_FILE)
            self.records.append({**start, "round": -1, **dict.fromkeys(AXES, 0)})
        num_bytes, seconds, extra = 0, 0.0, 0.0
        for entry in logs["metrics"].read():
            spent = timings.get(entry["round"], {})
            num_bytes += entry["bytes_down"] + entry["bytes_up"]
            seconds += spent.get("round", 0.0)
            extra += spent.get("exchange_slowest", 0.0)
            places: dict[str, Any] = {"rounds": entry["round"] + 1, "megabytes": num_bytes / 1e6, "seconds": seconds}
            if "delay_seconds" in entry:
                places |= {"transmission": entry["delay_seconds"], "delay": entry["delay_seconds"] + extra}
            self.records.append({**entry, **places})

    @property
    def seconds(self) -> float:
        """The time that its rounds took."""
        return float(self.records[-1]["seconds"]) if self.records else 0.0

    def curve(self, metric: str, axis: Axis) -> list[tuple[float, float]]:
        """Return places and values of a metric, in the order of rounds; records that lack either are left out."""
        name = self._name(metric)
        pairs = [(record.get(axis), record.get(name)) for record in self.records]
        return [(float(place), float(value)) for place, value in pairs if place is not None and value is not None]

    def value(self, metric: str, target: float | None = None) -> float | None:
        """Return a metric, in any of its forms; None if there is none or the value was not reached.

        Args:
            metric: its name.
            target: the value that ``steps to 50% of linear`` has to reach, which depends on other runs.
        """
        wanted, at = parse_time_to_target(metric), parse_value_at(metric)
        if wanted is not None:
            if wanted.relative and target is None:
                raise UserError(f"The metric {metric!r} compares the runs of a study: give an accuracy, such as 0.6.")
            goal = target if wanted.relative and target is not None else wanted.value
            return _first_reach(self.curve(wanted.metric, wanted.axis), goal, wanted.axis not in COUNTED)
        if at is not None:
            return _read_at(self.curve(at.metric, at.axis), at.place)
        name = self._name(logged_name(metric))
        values = [float(value) for record in self.records if (value := record.get(name)) is not None]
        if not values:
            return None
        return values[-1] if logged_name(metric) == metric else statistics.fmean(values)

    def probes(self) -> dict[str, float]:
        """Return the last probes by name."""
        names = dict.fromkeys(name for record in self.records for name in record if name.startswith(PREFIX))
        found = {name.removeprefix(PREFIX): self.value(name.removeprefix(PREFIX)) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def _name(self, metric: str) -> str:
        probe = PREFIX + metric
        return probe if any(probe in record for record in self.records) else metric


def _first_reach(curve: list[tuple[float, float]], target: float, interpolated: bool) -> float | None:
    """Return the place where a curve first has a value; None if it never does."""
    for number, (place, value) in enumerate(curve):
        if value >= target:
            if number == 0 or not interpolated:
                return place
            before, low = curve[number - 1]
            return before + (place - before) * (target - low) / (value - low)
    return None


def _read_at(curve: list[tuple[float, float]], place: float) -> float | None:
    """Return the value of a curve at a place between two evaluations, None outside of them."""
    for (before, low), (after, high) in pairwise([*curve[:1], *curve]):
        if before <= place <= after:
            return high if after == before else low + (high - low) * (place - before) / (after - before)
    return None
