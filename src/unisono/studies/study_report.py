"""Report of a study: its claim, its table beside the paper's numbers, its curves, its runs."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

from unisono.report.blocks import Block, Series, code, document, facts, lines, prose, section, table
from unisono.report.html import render
from unisono.report.thumbnails import Sprite
from unisono.studies.figure import axis_name, shown
from unisono.studies.history import AXES, in_percent, logged_name
from unisono.studies.mean_curve import mean_curve
from unisono.studies.results import Results
from unisono.studies.runner import CellStatus
from unisono.studies.study import UNTRAINED, Axis
from unisono.studies.tables import study_table

PICTURE = "figure"
VIEW_BOX = re.compile(rb'viewBox="0 0 ([0-9.]+) ([0-9.]+)"')
"""Width and height of an SVG that Matplotlib made, in points."""
WIDEST = 1080
"""Pixels that a picture may take on the page."""


def study_report(results: Results, command: str = "", figure: bytes = b"") -> str:
    """Return one self-contained HTML file.

    Args:
        results: of the study.
        command: what repeats it.
        figure: the study's figure as SVG; left out where the page draws the same curves itself.
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
    picture = _picture(figure) if figure and not (config.plot == "curves" and curves) else None
    sections = [
        section("about", "What it asks", [about, *problems]),
        section("results", "Results", [*tables, prose(config.note) if config.note else None]),
        section("picture", "Figure", [_sheet(config.title)] if picture else []),
        section("curves", "Over the course of runs", curves),
        section("runs", "Runs", [runs]),
        section("repeat", "Repeat it", [code("", command)] if command else []),
    ]
    status = "finished" if finished == total else "failed" if failed else "unfinished"
    tiles = [(f"{finished} of {total}", "runs finished"), (f"{seconds / 60:.0f} min", "of training")]
    assets = {PICTURE: picture} if picture else {}
    return render(document(config.title, config.source, sections, status=status, tiles=tiles, assets=assets))


def _table(results: Results, metric: str) -> Block:
    made = study_table(results, metric)
    note = f"Mean ± {results.study.config.spread} over seeds."
    note += " Accuracies in percent." if in_percent(metric) else ""
    note += " In brackets: the paper's number." if results.study.has_paper_numbers(metric) else ""
    return table(metric, made.heads, made.rows, note=note)


def _picture(figure: bytes) -> Sprite:
    """Return the figure as a sprite of one thumbnail. Its ground is white, so a dark page does not hide its text."""
    width, height = (float(edge) * 96 / 72 for edge in VIEW_BOX.findall(figure)[0])
    factor = min(1.0, WIDEST / width)
    width, height = round(factor * width), round(factor * height)
    width = max(width, height)  # a sheet fits a thumbnail's longer edge into its width, which would shrink a tall figure
    source = "data:image/svg+xml;base64," + base64.b64encode(figure).decode()
    sizes = {"width": width, "height": height, "cell_width": width, "cell_height": height}
    return {"source": source, "columns": 1, "count": 1, "pixels": False, **sizes}


def _sheet(title: str) -> Block:
    """Return a block that shows the figure."""
    row = {"name": "", "members": [0], "titles": [title]}
    return {"kind": "sheet", "title": "", "note": "", "wide": True, "sprite": PICTURE, "rows": [row]}


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
