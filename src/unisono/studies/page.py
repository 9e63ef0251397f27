"""The page of a study: its claim, its table beside the paper's numbers, its curves, its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unisono.report.blocks import Block, Series, code, columns, document, facts, lines, prose, section, table
from unisono.report.page import render
from unisono.studies.figure import axis_name, mean_curve, paper_value
from unisono.studies.history import AXES, in_percent, parse_effort
from unisono.studies.results import Results
from unisono.studies.runner import Status
from unisono.studies.study import UNTRAINED, Axis
from unisono.studies.tables import study_table


def study_page(results: Results, command: str = "") -> str:
    """One self-contained HTML file.

    Args:
        results: of the study.
        command: what repeats it.
    """
    study, config = results.study, results.study.config
    finished = sum(outcome.status is Status.finished for outcome in results.outcomes)
    total = len(results.outcomes)
    failed = [outcome for outcome in results.outcomes if outcome.reason]
    seconds = sum(outcome.history.seconds for outcome in results.outcomes if outcome.history)
    about = facts(
        "",
        [
            ("claim", config.claim),
            ("source", config.source),
            ("scale", config.scale),
            ("cost", config.cost),
            ("variants", ", ".join(study.row_names)),
            ("settings", ", ".join(name for name in study.setting_names if name != "all")),
        ],
    )
    tables = [_table(results, metric) for metric in config.metrics]
    runs = table(
        "Runs",
        ["variant", "setting", "seed", "status", *config.metrics, "time [s]"],
        [
            [
                outcome.cell.variant,
                "" if outcome.cell.setting == "all" else outcome.cell.setting,
                outcome.cell.seed,
                "failed" if outcome.reason else str(outcome.status),
                *(outcome.values[metric] for metric in config.metrics),
                outcome.history.seconds if outcome.history else None,
            ]
            for outcome in results.outcomes
        ],
    )
    problems = [prose(f"{outcome.cell.title}: {outcome.reason}", tone="error") for outcome in failed]
    sections = [
        section("about", "What it asks", [about, *problems]),
        section("results", "Results", [*tables, prose(config.note) if config.note else None]),
        section("figure", "Over the settings", _lines_over_settings(results)),
        section("bars", "Side by side", _columns(results)),
        section("curves", "Over the course of runs", _curves(results)),
        section("runs", "Runs", [runs]),
        section("repeat", "Repeat it", [code("", command)] if command else []),
    ]
    status = "finished" if finished == total else "failed" if failed else "unfinished"
    tiles = [(f"{finished} of {total}", "runs finished"), (f"{seconds / 60:.0f} min", "of training")]
    return render(document(config.title, config.source, sections, status=status, tiles=tiles))


def _table(results: Results, metric: str) -> Block:
    made = study_table(results, metric)
    note = "Mean ± standard deviation over seeds."
    note += " Accuracies in percent." if in_percent(metric) else ""
    note += " In brackets: the paper's number." if metric in results.study.paper else ""
    return table(metric, made.heads, made.rows, note=note)


def _columns(results: Results) -> list[Block]:
    """For studies in the shape of a table: a column per variant, ours and then the paper's, a chart per setting."""
    study = results.study
    if study.config.shape != "bars":
        return []
    blocks = []
    for metric in study.config.metrics:
        factor = 100 if in_percent(metric) else 1
        for setting in study.setting_names:
            means = {variant: results.summary(metric, variant, setting).mean for variant in study.row_names}
            ours = {variant: factor * mean for variant, mean in means.items() if mean is not None}
            theirs = {variant: paper_value(results, metric, variant, setting) for variant in study.row_names}
            for who, values in (
                ("here", ours),
                ("paper", {name: value for name, value in theirs.items() if value is not None}),
            ):
                if values and ours:
                    title = ", ".join([metric, *([] if setting == "all" else [setting]), who])
                    rows = [[value] for value in values.values()]
                    blocks.append(columns(title, "", axis_name(metric), list(values), [who], rows))
    return blocks


def _lines_over_settings(results: Results) -> list[Block]:
    """For studies of a numeric setting: ours, and the paper's dashed where it has numbers."""
    study = results.study
    if study.config.shape != "line" or any(setting.value is None for setting in study.settings):
        return []
    blocks = []
    for metric in study.config.metrics:
        series = []
        for variant in study.row_names:
            ours = [results.summary(metric, variant, name) for name in study.setting_names]
            places = [_place(setting.value, study.config.log_axis) for setting in study.settings]
            low = [None if s.mean is None else s.mean - (s.deviation or 0) for s in ours]
            high = [None if s.mean is None else s.mean + (s.deviation or 0) for s in ours]
            series.append(Series(variant, places, [s.mean for s in ours], low, high))
            factor = 100 if in_percent(metric) else 1
            theirs = [paper_value(results, metric, variant, name) for name in study.setting_names]
            if any(value is not None for value in theirs):
                scaled = [None if value is None else value / factor for value in theirs]
                series.append(Series(f"{variant} (paper)", places, scaled, dashed=True))
        label = ("log10 of " if study.config.log_axis else "") + (study.config.axis_label or "the setting")
        blocks.append(lines(metric, label, metric, series, percent=in_percent(metric), wide=True))
    return blocks


def _place(value: float | None, logarithmic: bool) -> float | None:
    return math.log10(value) if logarithmic and value else value


def _curves(results: Results) -> list[Block]:
    """Every metric over the study's axis and over rounds, a chart per setting."""
    study = results.study
    axes: Sequence[Axis] = list(dict.fromkeys([study.config.axis, "rounds"]))
    blocks = []
    for metric in (name for name in study.config.metrics if parse_effort(name) is None):
        for axis in axes:
            for setting in study.setting_names:
                series, references = [], []
                for variant in study.row_names:
                    curve = mean_curve(results, metric, variant, setting, axis)
                    mean = results.summary(metric, variant, setting).mean
                    if variant == UNTRAINED and mean is not None:
                        references.append((variant, mean))
                    elif len(curve) > 1:
                        x, y, error = ([point[i] for point in curve] for i in range(3))
                        low = [value - deviation for value, deviation in zip(y, error, strict=True)]
                        high = [value + deviation for value, deviation in zip(y, error, strict=True)]
                        series.append(Series(variant, x, y, low, high))
                if series:
                    title = metric if setting == "all" else f"{metric}, {setting}"
                    percent = in_percent(metric)
                    blocks.append(lines(title, AXES[axis], metric, series, references=references, percent=percent))
    return blocks
