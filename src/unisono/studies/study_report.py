"""Report of a study: its claim, its table beside the paper's numbers, its curves, its runs."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from unisono.report.blocks import Block, Series, code, document, facts, lines, picture, prose, section, table
from unisono.report.html import render
from unisono.studies.figure import axis_name, shown
from unisono.studies.history import AXES, in_percent, logged_name
from unisono.studies.mean_curve import mean_curve
from unisono.studies.results import Results
from unisono.studies.runner import CellStatus
from unisono.studies.study import UNTRAINED, Axis
from unisono.studies.tables import study_table
from unisono.studies.verdict_text import SMALL_PRINT, verdict_table
from unisono.studies.verdicts import Verdict


def study_report(results: Results, command: str = "", figure: bytes = b"", verdicts: Sequence[Verdict] = ()) -> str:
    """Return one self-contained HTML file.

    Args:
        results: of the study.
        command: what repeats it.
        figure: the study's figure as SVG; left out where the page draws the same curves itself.
        verdicts: on the claims that belong to the study.
    """
    study, config = results.study, results.study.config
    finished = sum(cell_result.status is CellStatus.finished for cell_result in results.cell_results)
    total = len(results.cell_results)
    failed = [cell_result for cell_result in results.cell_results if cell_result.reason]
    seconds = sum(cell_result.history.seconds for cell_result in results.cell_results if cell_result.history)
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
        ["variant", "setting", "seed", "status", *map(axis_name, config.metrics), "time [s]"],
        [
            [
                cell_result.cell.variant,
                "" if cell_result.cell.setting == "all" else cell_result.cell.setting,
                cell_result.cell.seed,
                "failed" if cell_result.reason else str(cell_result.status),
                *(shown(cell_result.values[metric], metric) for metric in config.metrics),
                cell_result.history.seconds if cell_result.history else None,
            ]
            for cell_result in results.cell_results
        ],
    )
    problems = [prose(f"{cell_result.cell.title}: {cell_result.reason}", tone="error") for cell_result in failed]
    curves = _curves(results)
    shows = bool(figure) and not (config.plot == "curves" and curves)
    sections = [
        section("about", "What it asks", [about, *problems]),
        section("results", "Results", [*tables, prose(config.note) if config.note else None]),
        section("claims", "Claims", [_claims(verdicts)] if verdicts else []),
        section("picture", "Figure", [_picture(config.title, figure)] if shows else []),
        section("curves", "Over the course of runs", curves),
        section("runs", "Runs", [runs]),
        section("repeat", "Repeat it", [code("", command)] if command else []),
    ]
    status = "finished" if finished == total else "failed" if failed else "unfinished"
    tiles = [(f"{finished} of {total}", "runs finished"), (f"{seconds / 60:.0f} min", "of training")]
    return render(document(config.title, config.source, sections, status=status, tiles=tiles))


def _table(results: Results, metric: str) -> Block:
    made = study_table(results, metric)
    note = f"Mean ± {results.study.config.spread} over seeds."
    note += " Accuracies in percent." if in_percent(metric) else ""
    note += " In brackets: the paper's number." if results.study.has_paper_numbers(metric) else ""
    return table(metric, made.heads, made.rows, note=note)


def _claims(verdicts: Sequence[Verdict]) -> Block:
    made = verdict_table(verdicts)
    return table("", made.heads, made.rows, note=SMALL_PRINT)


def _picture(title: str, figure: bytes) -> Block:
    """Return the figure; its ground is white, so a dark page does not hide its text."""
    return picture(title, "data:image/svg+xml;base64," + base64.b64encode(figure).decode())


def _curves(results: Results) -> list[Block]:
    """Return every metric over the study's axis and over rounds, a chart per setting."""
    study = results.study
    axes: Sequence[Axis] = list(dict.fromkeys([*study.config.axes, "rounds"]))
    blocks = []
    for metric in (name for name in study.config.metrics if logged_name(name) == name):
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
