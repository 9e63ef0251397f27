"""The page of a comparison: the table, the differences, and all curves on top of each other."""

from __future__ import annotations

import statistics

from unisono.report.blocks import Block, Series, code, document, lines, section, table
from unisono.report.page import render
from unisono.studies.comparison import Comparison, Group, unit_note
from unisono.studies.history import AXES, in_percent, parse_effort
from unisono.studies.study import Axis


def compare_page(comparison: Comparison, command: str = "") -> str:
    """One self-contained HTML file.

    Args:
        comparison: what to show.
        command: what repeats it.
    """
    made, differences = comparison.table(), comparison.difference_table()
    sections = [
        section("results", "Results", [table("At the end", made.heads, made.rows, note=unit_note(comparison.metrics))]),
        section(
            "differences",
            f"Differences to {comparison.groups[0].label}",
            [table("", differences.heads, differences.rows, note=comparison.explanation())] if differences.rows else [],
        ),
        section("curves", "Over rounds", _charts(comparison, "rounds")),
        section("communication", "Over communication", _charts(comparison, "megabytes")),
        section("runs", "Runs", [_runs(comparison)]),
        section("repeat", "Repeat it", [code("", command)] if command else []),
    ]
    num_runs = sum(len(group.runs) for group in comparison.groups)
    subtitle = f"{num_runs} runs in {len(comparison.groups)} groups"
    return render(document("Comparison of runs", subtitle, sections))


def _charts(comparison: Comparison, axis: Axis) -> list[Block]:
    """A chart per metric, and one for the loss; lines are means over seeds, bands their deviation."""
    names = [metric for metric in comparison.metrics if parse_effort(metric) is None]
    charts = []
    for metric in dict.fromkeys([*names, *(["loss"] if axis == "rounds" else [])]):
        series = [one for group in comparison.groups if (one := _series(group, metric, axis)) is not None]
        if series:
            charts.append(lines(metric, AXES[axis], metric, series, percent=in_percent(metric)))
    return charts


def _series(group: Group, metric: str, axis: Axis) -> Series | None:
    curves = [curve for run in group.runs if (curve := run.history.curve(metric, axis))]
    if not curves or len(curves[0]) < 2:
        return None
    together = list(zip(*curves, strict=False))
    places = [statistics.fmean(place for place, _ in points) for points in together]
    means = [statistics.fmean(value for _, value in points) for points in together]
    if len(curves) == 1:
        return Series(group.label, places, means)
    deviations = [statistics.stdev(value for _, value in points) for points in together]
    low = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
    high = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
    return Series(group.label, places, means, low, high)


def _runs(comparison: Comparison) -> Block:
    rows = [
        [
            group.label,
            run.seed,
            "finished" if run.finished else "unfinished",
            *(run.history.value(m) for m in comparison.metrics),
            str(run.path),
        ]
        for group in comparison.groups
        for run in group.runs
    ]
    return table("", ["group", "seed", "state", *comparison.metrics, "run"], rows)
