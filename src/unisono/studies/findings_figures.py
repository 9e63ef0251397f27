"""Figures of kept numbers: differences of claims with their intervals, values of cells by seed, curves over rounds."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
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
    figure, axes = _figure(ROW * len(rows) + 0.9)
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
    """Return an SVG: curves over rounds where runs were looked at more than once, otherwise a point per seed.

    Args:
        cells: with a value of the metric.
        metric: its name.
        name: of the figure.
    """
    figure, axes = _figure(3.4)
    learnt = [cell for cell in cells if cell.variant != UNTRAINED]
    curves = [cell for cell in learnt if len(cell.looks.get(metric, {})) > 1]
    several = len({cell.setting for cell in learnt}) > 1
    if curves:
        for row, cell in enumerate(curves):
            looked = {int(round): values for round, values in cell.looks[metric].items()}
            known = {round: [value for value in values if value is not None] for round, values in sorted(looked.items())}
            x = [round for round, values in known.items() if values]
            y = [shown(sum(known[round]) / len(known[round]), metric) for round in x]
            label = f"{cell.variant}, {cell.setting}" if several else cell.variant
            axes.plot(x, [value or 0.0 for value in y], color=LIGHT[row % len(LIGHT)], label=label)
        axes.set_xlabel("rounds")
    else:
        for place, cell in enumerate(learnt):
            values = [shown(value, metric) or 0.0 for value in cell.by_seed(metric).values()]
            axes.plot([place] * len(values), values, MARKERS[0], color=LIGHT[0], alpha=0.6)
            axes.plot([place - 0.2, place + 0.2], [sum(values) / len(values)] * 2, color=LIGHT[0])
        names = [f"{cell.variant}\n{cell.setting}" if several else cell.variant for cell in learnt]
        axes.set_xticks(range(len(learnt)), ["\n".join(textwrap.wrap(text, 14)) for text in names], fontsize=7)
        axes.set_xlim(-0.6, len(learnt) - 0.4)
    _add_floors(axes, cells, metric)
    axes.set_ylabel(axis_name(metric))
    return _svg(figure, name)


def _add_floors(axes: Axes, cells: Sequence[CellNumbers], metric: str) -> None:
    """Draw the mean of raw pixels and of untrained weights over all cells."""
    for floor, style in FLOORS.items():
        rows = [cell.mean(metric) for cell in cells if cell.variant == floor]
        found = rows or [cell.floor(floor, metric) for cell in cells]
        known = [value for value in found if value is not None]
        level = shown(sum(known) / len(known), metric) if known else None
        if level is not None:
            axes.axhline(level, color="0.45", linestyle=style, linewidth=1, label=floor)


def _figure(height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: Figure, name: str) -> bytes:
    """Return the figure as SVG; the same content gives the same bytes."""
    from matplotlib import rc_context

    (axes,) = figure.axes
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)), frameon=False)
    content = io.BytesIO()
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()
