"""Figures of kept numbers: differences of claims with their intervals, values of cells by seed, curves over rounds."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from unisono.evaluation.floors import PIXELS, UNTRAINED
from unisono.report.palette import LIGHT
from unisono.studies.figure import MARKERS, axis_name, shown
from unisono.studies.numbers import CellNumbers
from unisono.studies.verdicts import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.0
ROW = 0.62
"""Inches for one claim."""
LINE = 0.32
"""Inches for one method."""
LETTERS = 60
FLOORS = {PIXELS: ":", UNTRAINED: "--"}


def draw_effects(verdicts: Sequence[Verdict], name: str) -> bytes:
    """Return an SVG with the difference of each claim in points, its interval, and the paper's effect; empty without any.

    Args:
        verdicts: on claims with a difference; those in another unit than points are left out.
        name: of the figure, from which names inside the file are made.
    """
    rows = [verdict for verdict in verdicts if verdict.claim.unit == "points"]
    if not rows:
        return b""
    figure = _figure(ROW * len(rows) + 0.9)
    axes = figure.add_subplot()
    for place, verdict in enumerate(rows):
        difference, effect = verdict.difference, verdict.claim.paper_effect.value
        if difference is None or difference.mean is None or difference.interval is None:
            continue
        low, high = difference.interval
        axes.plot([low, high], [place, place], color=LIGHT[0], linewidth=2)
        axes.plot([difference.mean], [place], "o", color=LIGHT[0], label="here, 95% interval")
        if effect is not None:
            axes.plot([effect], [place], "D", color="0.45", markersize=5, label="paper")
    axes.axvline(0, color="0.6", linewidth=1)
    names = [f"{verdict.claim.text} [{verdict.scale}]: {verdict.word}" for verdict in rows]
    axes.set_yticks(range(len(rows)), ["\n".join(textwrap.wrap(text, LETTERS)) for text in names], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("difference in points")
    return _svg(figure, name)


def draw_cells(cells: Sequence[CellNumbers], metric: str, name: str) -> bytes:
    """Return an SVG with a panel per setting: curves over rounds where runs were looked at more than once, else points by seed.

    Args:
        cells: with a value of the metric.
        metric: its name.
        name: of the figure.
    """
    learnt = [cell for cell in cells if cell.variant not in FLOORS]
    settings, variants = (list(dict.fromkeys(names)) for names in zip(*((c.setting, c.variant) for c in learnt), strict=True))
    curves = any(len(cell.looks.get(metric, {})) > 1 for cell in learnt)
    figure = _figure(3.4 if curves else LINE * len(variants) + 1.1)
    panels = figure.subplots(1, len(settings), sharex=True, sharey=True, squeeze=False)[0]
    for axes, setting in zip(panels, settings, strict=True):
        shown_here = [cell for cell in learnt if cell.setting == setting]
        for cell in shown_here:
            row = variants.index(cell.variant)
            (_draw_curve if curves else _draw_seeds)(axes, cell, metric, row)
        draw_floors = _add_floors if curves else partial(_add_floors_of_rows, variants=variants)
        draw_floors(axes, [cell for cell in cells if cell.setting == setting], metric)
        axes.set_title(setting if len(settings) > 1 else "", fontsize=9)
        axes.set_xlabel("rounds" if curves else axis_name(metric))
    if curves:
        panels[0].set_ylabel(axis_name(metric))
    else:
        panels[0].set_yticks(range(len(variants)), variants, fontsize=8)
        panels[0].set_ylim(len(variants) - 0.5, -0.5)
    return _svg(figure, name)


def _draw_curve(axes: Axes, cell: CellNumbers, metric: str, row: int) -> None:
    """Draw the mean over seeds at every look."""
    looked = {int(round): values for round, values in cell.looks.get(metric, {}).items()}
    known = {round: [value for value in values if value is not None] for round, values in sorted(looked.items())}
    x = [round for round, values in known.items() if values]
    y = [shown(sum(known[round]) / len(known[round]), metric) or 0.0 for round in x]
    axes.plot(x, y, color=LIGHT[row % len(LIGHT)], label=cell.variant)


def _draw_seeds(axes: Axes, cell: CellNumbers, metric: str, row: int) -> None:
    """Draw a point per seed, and their mean as a short line."""
    values = [shown(value, metric) or 0.0 for value in cell.by_seed(metric).values()]
    axes.plot(values, [row] * len(values), MARKERS[0], color=LIGHT[0], alpha=0.6, linewidth=0, label="a seed")
    axes.plot([sum(values) / len(values)] * 2, [row - 0.3, row + 0.3], color=LIGHT[0], label="mean")


def _add_floors_of_rows(axes: Axes, cells: Sequence[CellNumbers], metric: str, variants: Sequence[str]) -> None:
    """Draw raw pixels and untrained weights at every row: methods that start from other weights have other floors."""
    for floor, style in FLOORS.items():
        common = next((cell.mean(metric) for cell in cells if cell.variant == floor), None)
        for cell in (cell for cell in cells if cell.variant not in FLOORS):
            level = shown(cell.floor(floor, metric) if common is None else common, metric)
            if level is not None:
                row = variants.index(cell.variant)
                axes.plot([level] * 2, [row - 0.5, row + 0.5], color="0.45", linestyle=style, linewidth=1, label=floor)


def _add_floors(axes: Axes, cells: Sequence[CellNumbers], metric: str) -> None:
    """Draw the mean of raw pixels and of untrained weights over all cells of a panel."""
    for floor, style in FLOORS.items():
        rows = [cell.mean(metric) for cell in cells if cell.variant == floor]
        found = rows or [cell.floor(floor, metric) for cell in cells]
        known = [value for value in found if value is not None]
        level = shown(sum(known) / len(known), metric) if known else None
        if level is not None:
            axes.axhline(level, color="0.45", linestyle=style, linewidth=1, label=floor)


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def _svg(figure: Figure, name: str) -> bytes:
    """Return the figure as SVG; the same content gives the same bytes."""
    from matplotlib import rc_context

    handles = {name: handle for axes in figure.axes for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)), frameon=False)
    content = io.BytesIO()
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()
