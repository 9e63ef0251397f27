"""Report of a comparison: the table, the differences, and all curves on top of each other."""

from __future__ import annotations

from unisono.report.blocks import Block, Series, code, document, lines, section, table
from unisono.report.html import render
from unisono.report.overview import plural
from unisono.studies.comparison import Comparison
from unisono.studies.figure import axis_name, shown
from unisono.studies.history import AXES, in_percent, logged_name
from unisono.studies.mean_curve import mean_over_seeds
from unisono.studies.seed_groups import Group
from unisono.studies.study import Axis

LINES = "Means over seeds, and bands of their deviation, after the rounds that all runs of a group have."


def comparison_report(comparison: Comparison, command: str = "") -> str:
    """Return one self-contained HTML file.

    Args:
        comparison: what to show.
        command: what repeats it.
    """
    made, differences = comparison.table(), comparison.difference_table()
    sections = [
        section("results", "Results", [table("", made.heads, made.rows, note=comparison.note())]),
        section(
            "differences",
            f"Differences to {comparison.groups[0].label}",
            [table("", differences.heads, differences.rows, note=comparison.explanation())] if differences.rows else [],
        ),
        section("curves", "Over rounds", _charts(comparison, "rounds"), note=LINES),
        section("communication", "Over communication", _charts(comparison, "megabytes"), note=LINES),
        section("runs", "Runs", [_runs(comparison)]),
        section("repeat", "Repeat it", [code("", command)] if command else []),
    ]
    num_runs = sum(len(group.runs) for group in comparison.groups)
    subtitle = f"{plural(num_runs, 'run')} in {plural(len(comparison.groups), 'group')}"
    return render(document("Comparison of runs", subtitle, sections))


def _charts(comparison: Comparison, axis: Axis) -> list[Block]:
    """Return a chart per metric, and one for the loss; lines are means over seeds, bands their deviation."""
    names = [metric for metric in comparison.metrics if logged_name(metric) == metric]
    charts = []
    for metric in dict.fromkeys([*names, *(["loss"] if axis == "rounds" else [])]):
        series = [one for group in comparison.groups if (one := _series(group, metric, axis)) is not None]
        if series:
            charts.append(lines(metric, AXES[axis], metric, series, percent=in_percent(metric)))
    return charts


def _series(group: Group, metric: str, axis: Axis) -> Series | None:
    points = mean_over_seeds([run.history for run in group.runs], metric, axis)
    if len(points) < 2:
        return None
    places, means, deviations = map(list, zip(*points, strict=True))
    if len(group.values(metric)) == 1:
        return Series(group.label, places, means)
    low = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
    high = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
    return Series(group.label, places, means, low, high)


def _runs(comparison: Comparison) -> Block:
    rows = [
        [
            group.label,
            run.seed,
            "finished" if run.finished else f"round {run.rounds_done} of {run.num_rounds}",
            *(shown(run.history.value(metric), metric) for metric in comparison.metrics),
            str(run.path),
        ]
        for group in comparison.groups
        for run in group.runs
    ]
    return table("", ["group", "seed", "state", *map(axis_name, comparison.metrics), "run"], rows)
