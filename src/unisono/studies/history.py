"""Results of a run: a metric at its end, over its course, or the time it took to reach a value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.core.errors import UserError
from unisono.runs.evaluation import PREFIX
from unisono.runs.files import JsonLines
from unisono.studies.study import Axis

AXES: dict[Axis, str] = {
    "rounds": "rounds",
    "steps": "steps of every client",
    "megabytes": "communication [MB]",
    "seconds": "time [s]",
    "delay": "modelled time [s]",
}
"""Axes of a curve, and their labels."""
PERCENT = (
    "linear", "linear-sgd", "knn", "labels-10", "finetune-1", "finetune-10", "cluster-accuracy", "nmi", "ari",
    "kmeans-accuracy", "kmeans-nmi", "kmeans-ari",
)  # fmt: skip
"""Metrics that papers print in percent."""
_TIME_TO_TARGET = re.compile(r"(?P<axis>[a-z]+) to (?P<metric>\S+) (?P<value>[0-9.eE+-]+)")


@dataclass(frozen=True)
class TimeToTarget:
    """A metric such as ``rounds to linear 0.8``: the rounds, bytes or time that a run took to reach a value.

    Args:
        axis: what is counted.
        metric: what must be reached.
        value: how much of it.
    """

    axis: Axis
    metric: str
    value: float


def parse_time_to_target(name: str) -> TimeToTarget | None:
    """Return the parts of ``rounds to linear 0.8``; None for the name of a plain metric."""
    match = _TIME_TO_TARGET.fullmatch(name)
    if match is None:
        return None
    axis = match["axis"]
    if axis not in AXES:
        raise UserError(f"The metric {name!r} counts {axis!r}; known are {', '.join(AXES)}.")
    try:
        return TimeToTarget(axis, match["metric"], float(match["value"]))
    except ValueError as error:
        raise UserError(f"The metric {name!r} must end with a number.") from error


def in_percent(name: str) -> bool:
    """Return whether a metric is shown times 100."""
    return name in PERCENT


class History:
    """The records of a run with their places on every axis.

    Args:
        path: the run directory.
    """

    def __init__(self, path: Path) -> None:
        timings = {entry["round"]: entry["seconds"] for entry in JsonLines(path / "timings.jsonl").read()}
        self.records: list[dict[str, Any]] = []
        num_bytes, seconds, extra = 0, 0.0, 0.0
        for entry in JsonLines(path / "metrics.jsonl").read():
            spent = timings.get(entry["round"], {})
            num_bytes += entry["bytes_down"] + entry["bytes_up"]
            seconds += spent.get("round", 0.0)
            extra += spent.get("exchange_slowest", 0.0)
            places: dict[str, Any] = {"rounds": entry["round"] + 1, "megabytes": num_bytes / 1e6, "seconds": seconds}
            if "delay_seconds" in entry:
                places["delay"] = entry["delay_seconds"] + extra
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

    def value(self, metric: str) -> float | None:
        """Return a metric at the end of the run, or what reaching a value took; None if there is none or it was not reached."""
        target = parse_time_to_target(metric)
        if target is None:
            values = [value for record in self.records if (value := record.get(self._name(metric))) is not None]
            return float(values[-1]) if values else None
        reached = (place for place, value in self.curve(target.metric, target.axis) if value >= target.value)
        return next(reached, None)

    def probes(self) -> dict[str, float]:
        """Return the last probes by name."""
        names = dict.fromkeys(name for record in self.records for name in record if name.startswith(PREFIX))
        found = {name.removeprefix(PREFIX): self.value(name.removeprefix(PREFIX)) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def _name(self, metric: str) -> str:
        probe = PREFIX + metric
        return probe if any(probe in record for record in self.records) else metric
