"""Comparison of groups of runs, and their differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.core.errors import UserError
from unisono.evaluation.floors import floor_rows, mean_floors
from unisono.runs.directory import RunDirectory
from unisono.studies.history import in_percent
from unisono.studies.results import VOID_RULE, marked, mean_and_deviation, number, signed
from unisono.studies.seed_groups import Group, put_together, read_runs
from unisono.studies.significance import ALPHA, RULE, Difference, compare_pairs, holm, margin_needed, t_interval
from unisono.studies.tables import TextTable, latex_text

UNSAID = "-"
DIFFERENCE_HEADS = ("difference", "difference deviation", "pairs", "low", "high", "could see", "t-test", "corrected", "verdict")
"""Heads of the columns about the difference between a group and the first one."""
HIGHER = "Higher and lower: p is below 0.05."
EQUAL = (
    "Equal: the interval at 90% lies within the margin of {margin:g}; not equal: the interval at 95% lies wholly outside it. "
    "Verdicts of equality are not corrected for the number of groups."
)


@dataclass(frozen=True)
class Comparison:
    """Groups of runs; the first is what the others are compared with.

    Args:
        groups: in the order of their first runs.
        metrics: what is compared.
        margin: differences up to it count as none, in points of accuracies; None: groups are asked to differ.
    """

    groups: Sequence[Group]
    metrics: Sequence[str]
    margin: float | None = None

    @property
    def floors(self) -> dict[str, dict[str, float]]:
        """Means over seeds of the floors, by floor and metric; of each group by itself where groups do not agree."""
        found = {group.label: mean_floors([RunDirectory(run.path).floors for run in group.runs]) for group in self.groups}
        rows = {
            name: {metric: row[metric] for metric in self.metrics if metric in row} for name, row in floor_rows(found).items()
        }
        return {name: row for name, row in rows.items() if row}

    def table(self) -> TextTable:
        """Return mean and deviation over seeds: a row per group, a column per metric."""
        rows = [[group.label, _seeds(group), *(self._value(group, metric) for metric in self.metrics)] for group in self.groups]
        floors = [[name, "", *(number(floor.get(m), m) for m in self.metrics)] for name, floor in self.floors.items()]
        return TextTable(["", "seeds", *self.metrics], [*floors, *rows])

    def note(self) -> str:
        """Return how to read the table, and which runs are not finished."""
        sentences = ["Mean ± standard deviation over seeds."]
        if any(map(in_percent, self.metrics)):
            sentences.append("Accuracies in percent.")
        if self.floors:
            sentences.append(VOID_RULE)
        unfinished = [f"{group.label}, {run.standing}" for group in self.groups for run in group.unfinished]
        if unfinished:
            sentences.append(f"Not finished, and counted with the latest values so far: {'; '.join(unfinished)}.")
        return " ".join(sentences)

    def differences(self, metric: str) -> list[tuple[Group, Difference, float | None]]:
        """Return every group but the first against the first, with the t-test's p-value corrected for their number."""
        first, *others = self.groups
        found = [compare_pairs(group.values(metric), first.values(metric)) for group in others]
        corrected = holm([difference.t_test for difference in found])
        return list(zip(others, found, corrected, strict=True))

    def difference_table(self) -> TextTable:
        """Return a table of all differences; intervals and p-values are left out where none has one."""
        rows = []
        for metric in self.metrics:
            for group, difference, corrected in self.differences(metric):
                ends = [signed(end, metric) for end in difference.interval or ()]
                said = [" to ".join(ends) or UNSAID, _p(corrected), self._verdict_words(group, difference, corrected, metric)]
                if difference.mean is not None:
                    rows.append([group.label, metric, signed(difference.mean, metric), str(difference.num_pairs), *said])
        heads = ["", "metric", "difference", "pairs", "95% interval", "p", "verdict"]
        width = len(heads) if any(row[4] != UNSAID for row in rows) else 4
        return TextTable(heads[:width], [row[:width] for row in rows], num_names=2)

    def explanation(self) -> str:
        """Return how to read the differences, and why no interval is given where that is so."""
        found = [difference for metric in self.metrics for _, difference, _ in self.differences(metric)]
        reasons = list(dict.fromkeys(difference.reason for difference in found if difference.reason and difference.num_pairs))
        sentences = [f"Differences are those to {self.groups[0].label}, paired by seed."]
        if any(group.unfinished for group in self.groups):
            sentences.append("Runs that are not finished are among them.")
        if any(difference.interval is not None for difference in found):
            sentences[0] = f"Differences are those to {self.groups[0].label}. {RULE.replace('Differences', 'They', 1)}"
            sentences.append("p is that of the paired t-test, two-sided, after Holm for the number of groups.")
            sentences.append(EQUAL.format(margin=self.margin) if self.margin is not None else HIGHER)
        if reasons:
            sentences.append(f"Whether they are significant cannot be said where there are {'; or '.join(reasons)}.")
        return " ".join(sentences)

    def verdict(self, group: Group, difference: Difference, corrected: float | None, metric: str) -> str:
        """Return what is decided about a group and the first one: void, higher, lower, equal, not equal or undecided.

        Args:
            group: another than the first.
            difference: between the two.
            corrected: p-value of the t-test after Holm.
            metric: what is compared.
        """
        if difference.interval is None or difference.mean is None or difference.deviation is None:
            return UNSAID
        if any(self._is_void(one, metric) for one in (self.groups[0], group)):
            return "void"
        if self.margin is None:
            decided = corrected is not None and corrected < ALPHA
            return ("higher" if difference.mean > 0 else "lower") if decided else "undecided"
        margin = self.margin / 100 if in_percent(metric) else self.margin
        low, high = t_interval(difference.mean, difference.deviation, difference.num_pairs, 1 - 2 * ALPHA)
        if -margin < low and high < margin:
            return "equal"
        return "not equal" if difference.interval[0] > margin or difference.interval[1] < -margin else "undecided"

    def _verdict_words(self, group: Group, difference: Difference, corrected: float | None, metric: str) -> str:
        verdict = self.verdict(group, difference, corrected, metric)
        if verdict != "undecided":
            return verdict
        if self.margin is None:
            return f"undecided (could see {number(self._could_see(difference, metric), metric)})"
        needed = margin_needed(difference.num_pairs) * (difference.deviation or 0.0)
        return f"undecided (a margin of {number(needed, metric)})"

    def _is_void(self, group: Group, metric: str) -> bool:
        return self._value(group, metric) != mean_and_deviation(group.summary(metric), metric)

    def _value(self, group: Group, metric: str) -> str:
        """Return mean and deviation, marked where the mean is not above the floors of the group's runs."""
        summary, floors = group.summary(metric), mean_floors([RunDirectory(run.path).floors for run in group.runs])
        text = mean_and_deviation(summary, metric)
        return marked(text, summary.mean, {name: scores.get(metric) for name, scores in floors.items()})

    def _could_see(self, difference: Difference, metric: str) -> float | None:
        """Return what could have been seen after the correction for all groups with a p-value."""
        return difference.could_see(sum(p is not None for _, _, p in self.differences(metric)))

    def number_table(self) -> TextTable:
        """Return everything as numbers with all digits, for other programs: a row per metric and group, no unit, no percent."""
        heads = ["group", "metric", "mean", "deviation", "seeds", "runs", "finished", "unfinished", *DIFFERENCE_HEADS]
        rows = []
        for metric in self.metrics:
            rows += [
                [name, metric, _digits(scores[metric]), *[""] * (len(heads) - 3)]
                for name, scores in self.floors.items()
                if metric in scores
            ]
            found = {
                group.label: self._numbers(difference, p, metric, self.verdict(group, difference, p, metric))
                for group, difference, p in self.differences(metric)
            }
            for group in self.groups:
                summary, unfinished = group.summary(metric), group.unfinished
                counts = [len(summary.values), len(group.runs), len(group.runs) - len(unfinished)]
                own = [*map(_digits, [summary.mean, summary.deviation, *counts]), "; ".join(run.standing for run in unfinished)]
                rows.append([group.label, metric, *own, *found.get(group.label, [""] * len(DIFFERENCE_HEADS))])
        return TextTable(heads, rows, num_names=2)

    def _numbers(self, difference: Difference, corrected: float | None, metric: str, verdict: str) -> list[str]:
        """Return the cells below ``DIFFERENCE_HEADS``."""
        ends = difference.interval or (None, None)
        said = [*ends, self._could_see(difference, metric), difference.t_test, corrected]
        return [*map(_digits, [difference.mean, difference.deviation, difference.num_pairs, *said]), verdict]

    def as_markdown(self) -> str:
        """Return the tables as Markdown, with explanations."""
        parts = [self.table().as_markdown(), self.note() + "\n"]
        if self.difference_table().rows:
            parts += [self.difference_table().as_markdown(), self.explanation() + "\n"]
        return "\n".join(parts)

    def as_latex(self) -> str:
        """Return the tables as LaTeX, with explanations."""
        parts = [self.table().as_latex(), latex_text(self.note()) + "\n"]
        if self.difference_table().rows:
            parts += [self.difference_table().as_latex(), latex_text(self.explanation()) + "\n"]
        return "\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON, for other programs."""
        return {
            "groups": [
                {
                    "label": group.label,
                    "runs": [str(run.path) for run in group.runs],
                    "seeds": [run.seed for run in group.runs],
                    "finished": not group.unfinished,
                    "unfinished": [
                        {"seed": run.seed, "round": run.rounds_done, "rounds": run.num_rounds} for run in group.unfinished
                    ],
                    "mean": {metric: group.summary(metric).mean for metric in self.metrics},
                    "deviation": {metric: group.summary(metric).deviation for metric in self.metrics},
                }
                for group in self.groups
            ],
            "floors": self.floors,
            "against": self.groups[0].label,
            "differences": [
                {
                    "label": group.label,
                    "metric": metric,
                    "mean": difference.mean,
                    "deviation": difference.deviation,
                    "pairs": difference.num_pairs,
                    "interval": difference.interval,
                    "could_see": self._could_see(difference, metric),
                    "t_test": difference.t_test,
                    "corrected": corrected,
                    "verdict": self.verdict(group, difference, corrected, metric),
                    "reason": difference.reason,
                }
                for metric in self.metrics
                for group, difference, corrected in self.differences(metric)
            ],
        }


def compare(paths: Iterable[Path], metrics: Sequence[str] = (), margin: float | None = None) -> Comparison:
    """Read runs and put those together that differ by their seed alone.

    Args:
        paths: run directories, or directories of such.
        metrics: what to compare; none: the probes that all groups have, or where there is none such, all.
        margin: differences up to it count as none, in points of accuracies.
    """
    if margin is not None and not 0 < margin < math.inf:
        raise UserError(f"The margin must be a number above 0, got {margin:g}.")
    runs = read_runs(paths)
    groups = put_together(runs)
    every = list(dict.fromkeys(name for run in runs for name in run.history.probes()))
    common = [name for name in every if all(group.values(name) for group in groups)]
    chosen = list(metrics) or common or every
    for metric in chosen:
        if all(not group.values(metric) for group in groups):
            known = sorted({name for run in runs for record in run.history.records for name in record})
            raise UserError(f"None of the runs has a metric {metric!r}. Known: {', '.join(known)}.")
    if not chosen:
        raise UserError("None of the runs has been probed yet: name a metric with --metric, such as --metric loss.")
    return Comparison(groups, chosen, margin)


def _seeds(group: Group) -> str:
    num_runs = len(group.runs)
    return f"{num_runs - len(group.unfinished)} of {num_runs} finished" if group.unfinished else str(num_runs)


def _digits(value: float | None) -> str:
    return "" if value is None else repr(value)


def _p(value: float | None) -> str:
    if value is None:
        return UNSAID
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"
