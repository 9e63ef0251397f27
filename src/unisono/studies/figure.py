"""The figure of a study: bars for a table, lines over a numeric setting, curves over the course of runs, or points."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unisono.report.palette import LIGHT
from unisono.studies.correlation import correlation, pairs_of
from unisono.studies.history import AXES, in_percent, logged_name
from unisono.studies.mean_curve import mean_curve
from unisono.studies.results import Results
from unisono.studies.study import UNTRAINED, SettingConfig

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vPX*<>"
PANEL_WIDTH = 6.4
PANEL_HEIGHT = 4.0
GROUP_WIDTH = 1.05
"""Inches for the bars of one setting; panels with many settings grow."""
ASIDE = 0.008
"""Distance between the marks of two variants at one place, so that no error bar hides another; a share of the axis."""
LETTERS = 12
"""Most letters of a setting's name on one line under its bars."""
LEGEND_MARK, LEGEND_LETTER = 0.7, 0.09
"""Inches in a legend for a mark with the room around it, and for a letter."""


def draw_study(results: Results) -> dict[str, bytes]:
    """Return PNG and SVG files by their endings; nothing while no run is finished.

    Args:
        results: of the study.
    """
    if not any(cell_result.history for cell_result in results.cell_results):
        return {}
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    shape = results.study.config.plot
    figure = Figure(layout="constrained")
    if shape == "embeddings":
        from unisono.studies.maps import draw_maps  # needs the models

        draw_maps(figure, results)
    else:
        draw = {"bars": _draw_bars, "line": _draw_line, "curves": _draw_curves, "scatter": _draw_scatter}[shape]
        draw(figure, results)
        _add_legend(figure, results.study.row_names)
    files = {}
    with rc_context({"svg.hashsalt": results.study.name}):
        for ending in ("png", "svg"):
            content = io.BytesIO()
            # Without a date, and with names made from the content alone, the same results give the same bytes.
            figure.savefig(content, format=ending, dpi=150, metadata={"Date": None} if ending == "svg" else {})
            files[ending] = content.getvalue()
    return files


def paper_value(results: Results, metric: str, variant: str, setting: str) -> float | None:
    """Return the paper's number if it begins with one, as it is printed there: accuracies in percent."""
    value = results.study.paper_number(metric, variant, setting)
    if isinstance(value, str):
        try:
            return float(value.split()[0].split("±")[0])
        except (ValueError, IndexError):
            return None
    return value


def axis_name(metric: str) -> str:
    """Return a metric with its unit."""
    return f"{metric} [%]" if in_percent(metric) else metric


def shown(value: float | None, metric: str) -> float | None:
    """Return a metric in the unit of ``axis_name``."""
    return 100 * value if value is not None and in_percent(metric) else value


def moved(places: Sequence[float], share: float, log: bool = False) -> list[float]:
    """Return places on an axis, moved to the right by a share of the length they span.

    Args:
        places: on the axis.
        share: to the left where negative.
        log: whether the axis is logarithmic.
    """
    low, high = min(places), max(places)
    return [place * (high / low) ** share if log else place + share * (high - low) for place in places]


def _panels(figure: Figure, results: Results, metric: str, row: int, num_rows: int) -> list[tuple[Axes, bool]]:
    """Return one panel for our numbers and, where there are any, one for the paper's."""
    any_paper = any(map(results.study.has_paper_numbers, results.study.config.metrics))
    columns = 2 if any_paper else 1
    width = PANEL_WIDTH
    if results.study.config.plot == "bars":
        width = max(width, GROUP_WIDTH * len(results.study.setting_names))
    figure.set_size_inches(width * columns, PANEL_HEIGHT * num_rows)
    panels = [(figure.add_subplot(num_rows, columns, row * columns + 1), False)]
    if any_paper or row == 0:
        panels[0][0].set_title(f"here ({results.study.config.scale} scale)" if any_paper else results.study.config.title)
    if results.study.has_paper_numbers(metric):
        panels.append((figure.add_subplot(num_rows, columns, row * columns + 2), True))
        panels[1][0].set_title(f"paper: {results.study.config.source}")
    return panels


def _ours(results: Results, metric: str, variant: str, setting: str) -> tuple[float | None, float]:
    factor = 100 if in_percent(metric) else 1
    summary = results.summary(metric, variant, setting)
    return (None if summary.mean is None else factor * summary.mean), factor * (summary.spread or 0.0)


def _point(results: Results, metric: str, variant: str, setting: str, paper: bool) -> tuple[float | None, float]:
    if paper:
        return paper_value(results, metric, variant, setting), 0.0
    return _ours(results, metric, variant, setting)


def _draw_bars(figure: Figure, results: Results) -> None:
    study, settings = results.study, results.study.setting_names
    for row, metric in enumerate(study.config.metrics):
        for axes, paper in _panels(figure, results, metric, row, len(study.config.metrics)):
            bars = {variant: _bars(results, metric, variant, paper) for variant in study.row_names}
            present = [variant for variant in study.row_names if bars[variant]]
            width = 0.8 / max(1, len(present))
            for number, variant in enumerate(present):
                places, y, error = zip(*bars[variant], strict=True)
                x = [place + (number - (len(present) - 1) / 2) * width for place in places]
                axes.bar(x, y, width, color=_colour(study.row_names.index(variant), variant), label=variant)
                if any(error):
                    axes.errorbar(x, y, error, fmt="none", ecolor="0.2", elinewidth=1, capsize=2)
            axes.set_xticks(range(len(settings)), ["" if name == "all" else _wrapped(name) for name in settings])
            axes.set_xlim(-0.5, len(settings) - 0.5)
            label = axis_name(metric)
            heights = [height for points in bars.values() for _, height, _ in points]
            if heights and min(heights) > 0.6 * max(heights):
                # Bars that differ by a few percent of their height would look alike from zero.
                axes.set_ylim(bottom=max(0.0, min(heights) - max(max(heights) - min(heights), 0.05 * max(heights))))
                label += ", not from 0"
            _finish(axes, "", label)


def _bars(results: Results, metric: str, variant: str, paper: bool) -> list[tuple[int, float, float]]:
    """Return place, height and deviation of a variant's bars, at the settings for which it has one."""
    points = [_point(results, metric, variant, setting, paper) for setting in results.study.setting_names]
    return [(place, height, error) for place, (height, error) in enumerate(points) if height is not None]


def _draw_line(figure: Figure, results: Results) -> None:
    study = results.study
    panels = dict.fromkeys(setting.panel for setting in study.settings)
    rows = [(metric, panel) for metric in study.config.metrics for panel in panels]
    for row, (metric, panel) in enumerate(rows):
        settings = [setting for setting in study.settings if setting.panel == panel]
        for axes, paper in _panels(figure, results, metric, row, len(rows)):
            _draw_lines(axes, results, metric, settings, paper)
            _finish(axes, study.config.axis_label, ": ".join(filter(None, [panel, axis_name(metric)])))


def _draw_lines(axes: Axes, results: Results, metric: str, settings: Sequence[SettingConfig], paper: bool) -> None:
    """Draw a line for every variant over these settings, by their values or side by side."""
    study, names = results.study, [setting.name for setting in settings]
    numbers = [setting.value for setting in settings]
    numeric = all(value is not None for value in numbers)
    places: Sequence[Any] = numbers if numeric else range(len(numbers))
    log = study.config.log_axis and numeric
    middle = (len(study.row_names) - 1) / 2
    for number, variant in enumerate(study.row_names):
        points = [_point(results, metric, variant, name, paper) for name in names]
        own = places if paper else moved(places, ASIDE * (number - middle), log)
        found = [(place, *point) for place, point in zip(own, points, strict=True) if point[0] is not None]
        if found:
            x, y, error = zip(*sorted(found), strict=True)
            axes.errorbar(x, y, error, color=_colour(number, variant), label=variant, capsize=3, **_style(number, variant))
    if log:
        axes.set_xscale("log")
    if not numeric or len(numbers) <= 8:
        axes.set_xticks(places, [name.removeprefix(f"{settings[0].panel}, ") for name in names])
        axes.minorticks_off()


def _draw_curves(figure: Figure, results: Results) -> None:
    from matplotlib.ticker import MaxNLocator

    study, settings = results.study, results.study.setting_names
    metrics = [metric for metric in study.config.metrics if logged_name(metric) == metric]
    rows = [(metric, axis) for axis in study.config.axes for metric in metrics]
    figure.set_size_inches(PANEL_WIDTH * len(settings), PANEL_HEIGHT * len(rows))
    for row, (metric, axis) in enumerate(rows):
        factor = 100 if in_percent(metric) else 1
        for column, setting in enumerate(settings):
            axes = figure.add_subplot(len(rows), len(settings), row * len(settings) + column + 1)
            for number, variant in enumerate(study.row_names):
                curve = mean_curve(results, metric, variant, setting, axis)
                if variant == UNTRAINED:
                    mean = results.summary(metric, variant, setting).mean
                    if mean is not None:
                        axes.axhline(factor * mean, color=_colour(number, variant), linestyle="--", label=variant)
                elif curve:
                    x, y, error = ([value[i] for value in curve] for i in range(3))
                    axes.plot(
                        x, [factor * v for v in y], color=_colour(number, variant), label=variant, **_style(number, variant)
                    )
                    low = [factor * (v - e) for v, e in zip(y, error, strict=True)]
                    high = [factor * (v + e) for v, e in zip(y, error, strict=True)]
                    axes.fill_between(x, low, high, color=_colour(number, variant), alpha=0.15, linewidth=0)
            axes.set_title(study.config.title if setting == "all" else setting)
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=axis in ("rounds", "steps"), steps=[1, 2, 2.5, 5, 10]))
            _finish(axes, AXES[axis], axis_name(metric))


def _draw_scatter(figure: Figure, results: Results) -> None:
    """Draw a point per run: the second metric over the first, with their correlation."""
    study = results.study
    first, second = study.config.metrics[:2] if len(study.config.metrics) > 1 else study.config.metrics * 2
    figure.set_size_inches(PANEL_WIDTH, 1.2 * PANEL_HEIGHT)
    axes = figure.add_subplot()
    factors = [100 if in_percent(metric) else 1 for metric in (first, second)]
    for number, variant in enumerate(study.row_names):
        points = pairs_of(results, first, second, [variant])
        if points:
            x, y = (
                [factor * value for value in values] for factor, values in zip(factors, zip(*points, strict=True), strict=True)
            )
            axes.scatter(x, y, color=_colour(number, variant), marker=MARKERS[number % len(MARKERS)], label=variant)
    r = correlation(pairs_of(results, first, second, study.row_names))
    axes.set_title(study.config.title + ("" if r is None else f"  (R = {r:.2f})"))
    _finish(axes, axis_name(first), axis_name(second))


def _colour(number: int, variant: str) -> str:
    return "0.45" if variant == UNTRAINED else LIGHT[number % len(LIGHT)]


def _style(number: int, variant: str) -> dict[str, Any]:
    return {"marker": MARKERS[number % len(MARKERS)], "markersize": 4, "linestyle": "--" if variant == UNTRAINED else "-"}


def _wrapped(name: str) -> str:
    return "\n".join(textwrap.wrap(name, LETTERS, break_long_words=False, break_on_hyphens=False))


def _add_legend(figure: Figure, names: Sequence[str]) -> None:
    """Add one legend for all panels, below them, where it hides nothing."""
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels = [name for name in names if name in handles]
    if len(labels) > 1:
        widest = LEGEND_MARK + LEGEND_LETTER * max(map(len, labels))
        columns = max(1, min(len(labels), int(figure.get_figwidth() // widest)))
        shown = [handles[label] for label in labels]
        figure.legend(handles=shown, labels=labels, loc="outside lower center", ncols=columns, frameon=False)


def _finish(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
