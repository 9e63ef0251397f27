"""Runs side by side: groups that differ by their seed alone, what tells the groups apart, and how much they differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.core.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.studies.history import History, in_percent
from unisono.studies.results import Summary, mean_and_deviation, number
from unisono.studies.significance import Difference, compare_pairs, holm
from unisono.studies.tables import TextTable

UNCOMPARED = ("format", "recipe", "run", "engine", "evaluation", "report", "track")
"""Tables in which runs of one group may differ."""
UNSAID = "-"
MOST_DIFFERENCES = 4
"""More options than this do not fit into a name."""


@dataclass(frozen=True)
class OneRun:
    """A run as far as a comparison needs it.

    Args:
        path: its directory.
        seed: of the run.
        options: all options by full name, but for those of ``UNCOMPARED``.
        history: what it logged.
        finished: whether it came to its end.
    """

    path: Path
    seed: int
    options: Mapping[str, Any]
    history: History
    finished: bool


@dataclass(frozen=True)
class Group:
    """Runs that differ by their seed alone.

    Args:
        label: what tells it from the other groups.
        runs: one for each seed.
    """

    label: str
    runs: Sequence[OneRun]

    def values(self, metric: str) -> dict[int, float]:
        """The last value of a metric by seed."""
        found = {run.seed: run.history.value(metric) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None}

    def summary(self, metric: str) -> Summary:
        """The same over seeds."""
        return Summary(list(self.values(metric).values()), len(self.runs))


@dataclass(frozen=True)
class Comparison:
    """Groups of runs; the first is what the others are compared with.

    Args:
        groups: in the order of their first runs.
        metrics: what is compared.
    """

    groups: Sequence[Group]
    metrics: Sequence[str]

    def table(self) -> TextTable:
        """Mean and deviation over seeds: a row per group, a column per metric."""
        rows = [
            [group.label, str(len(group.runs)), *(mean_and_deviation(group.summary(m), m) for m in self.metrics)]
            for group in self.groups
        ]
        return TextTable(["", "seeds", *self.metrics], rows)

    def differences(self, metric: str) -> list[tuple[Group, Difference, float | None]]:
        """Every group but the first against the first, with the t-test's p-value corrected for their number."""
        first, *others = self.groups
        found = [compare_pairs(group.values(metric), first.values(metric)) for group in others]
        corrected = holm([difference.t_test for difference in found])
        return list(zip(others, found, corrected, strict=True))

    def difference_table(self) -> TextTable:
        """What can be said about every difference; p-values are left out where none has one."""
        rows = []
        for metric in self.metrics:
            for group, difference, corrected in self.differences(metric):
                said = [_p(difference.t_test), _p(corrected), _p(difference.wilcoxon)]
                if difference.num_pairs:
                    rows.append([group.label, metric, _signed(difference, metric), str(difference.num_pairs), *said])
        heads = ["", "metric", "difference", "pairs", "t-test", "corrected", "Wilcoxon"]
        width = len(heads) if any(row[4] != UNSAID for row in rows) else 4
        return TextTable(heads[:width], [row[:width] for row in rows], num_names=2)

    def explanation(self) -> str:
        """How the differences are to be read, and why nothing can be said where that is so."""
        found = [difference for metric in self.metrics for _, difference, _ in self.differences(metric)]
        reasons = list(dict.fromkeys(difference.reason for difference in found if difference.reason and difference.num_pairs))
        sentences = [f"Differences are those to {self.groups[0].label}, paired by seed."]
        if any(difference.t_test is not None for difference in found):
            sentences.append(
                "P-values are two-sided; 'corrected' is the t-test's after Holm, for the number of groups. "
                "Wilcoxon's test needs six seeds to go below 0.05."
            )
        if reasons:
            sentences.append(f"Whether they are significant cannot be said where there are {'; or '.join(reasons)}.")
        return " ".join(sentences)

    def as_json(self) -> dict[str, Any]:
        """Everything, for other programs."""
        return {
            "groups": [
                {
                    "label": group.label,
                    "runs": [str(run.path) for run in group.runs],
                    "seeds": [run.seed for run in group.runs],
                    "finished": all(run.finished for run in group.runs),
                    "mean": {metric: group.summary(metric).mean for metric in self.metrics},
                    "deviation": {metric: group.summary(metric).deviation for metric in self.metrics},
                }
                for group in self.groups
            ],
            "against": self.groups[0].label,
            "differences": [
                {
                    "label": group.label,
                    "metric": metric,
                    "mean": difference.mean,
                    "pairs": difference.num_pairs,
                    "t_test": difference.t_test,
                    "corrected": corrected,
                    "wilcoxon": difference.wilcoxon,
                    "reason": difference.reason,
                }
                for metric in self.metrics
                for group, difference, corrected in self.differences(metric)
            ],
        }


def compare(paths: Iterable[Path], metrics: Sequence[str] = ()) -> Comparison:
    """Reads runs and puts those together that differ by their seed alone.

    Args:
        paths: run directories, or directories of such.
        metrics: what to compare; none: the probes that all groups have, or where there is none such, all.
    """
    runs = [_read(path) for given in paths for path in _expand(given)]
    by_options: dict[str, list[OneRun]] = {}
    for run in runs:
        by_options.setdefault(json.dumps(run.options, sort_keys=True), []).append(run)
    for together in by_options.values():
        seeds = [run.seed for run in together]
        if len(set(seeds)) < len(seeds):
            twice = next(run for run in together if seeds.count(run.seed) > 1)
            raise UserError(
                f"Two of the runs have the same settings and the same seed, {twice.seed}: "
                f"leave one of them out, such as {twice.path}."
            )
    labels = _labels([together[0] for together in by_options.values()])
    groups = [
        Group(label, sorted(together, key=lambda run: run.seed))
        for label, together in zip(labels, by_options.values(), strict=True)
    ]
    every = list(dict.fromkeys(name for run in runs for name in run.history.probes()))
    common = [name for name in every if all(group.values(name) for group in groups)]
    chosen = list(metrics) or common or every
    for metric in chosen:
        if all(not group.values(metric) for group in groups):
            known = sorted({name for run in runs for record in run.history.records for name in record})
            raise UserError(f"None of the runs has a metric {metric!r}. Known: {', '.join(known)}.")
    if not chosen:
        raise UserError("None of the runs has been probed yet: name a metric with --metric, such as --metric loss.")
    return Comparison(groups, chosen)


def _expand(path: Path) -> list[Path]:
    """A run directory itself, or the run directories inside."""
    if (path / "config.toml").is_file():
        return [path]
    inside = sorted(child.parent for child in path.glob("*/config.toml"))
    return inside or [RunDirectory.open(path).path]


def _read(path: Path) -> OneRun:
    directory = RunDirectory.open(path)
    tree = directory.config_tree
    history = History(path)
    options = {
        f"{table}.{key}": value
        for table, values in tree.items()
        if table not in UNCOMPARED and isinstance(values, Mapping)
        for key, value in values.items()
    }
    if history.records and history.records[-1]["round"] < 0:
        options["method.name"] = "untrained"
    return OneRun(path, int(tree["run"]["seed"]), options, history, directory.finished)


def _labels(runs: Sequence[OneRun]) -> list[str]:
    """For each group what tells it from the others: its method, and the options in which groups of that method differ.

    Falls back to the name of the run where that would be too long.
    """
    labels = []
    for run in runs:
        method = str(run.options.get("method.name", ""))
        alike = [other for other in runs if other.options.get("method.name") == run.options.get("method.name")]
        names = sorted({name for other in alike for name in other.options.keys() | run.options.keys()} - {"method.name"})
        differing = [name for name in names if any(other.options.get(name) != run.options.get(name) for other in alike)]
        if len(differing) > MOST_DIFFERENCES:
            labels.append(run.path.resolve().name)
            continue
        words = [f"{name.partition('.')[2]} {_word(run.options.get(name))}" for name in differing]
        labels.append(", ".join([method, *words]))
    return labels if len(set(labels)) == len(labels) else [run.path.resolve().name for run in runs]


def _word(value: Any) -> str:
    return "unset" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _p(value: float | None) -> str:
    if value is None:
        return UNSAID
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"


def _signed(difference: Difference, metric: str) -> str:
    if difference.mean is None:
        return ""
    sign = "+" if difference.mean >= 0 else "-"
    text = sign + number(abs(difference.mean), metric)
    return text if difference.deviation is None else f"{text} ± {number(difference.deviation, metric)}"


def unit_note(metrics: Iterable[str]) -> str:
    """How the table is to be read."""
    percent = " Accuracies in percent." if any(map(in_percent, metrics)) else ""
    return f"Mean ± standard deviation over seeds.{percent}"
