"""Maps of embeddings side by side: a panel for every variant and setting, a point for every test sample.

Points are features or soft assignments, colours are classes or clusters, as the study says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unisono.core.errors import UserError
from unisono.evaluation.features import embed
from unisono.experiment import Experiment
from unisono.loaded import load
from unisono.report.palette import LIGHT
from unisono.report.projection import Array, chosen_projection, project
from unisono.studies.grid import Cell
from unisono.studies.results import CellResult, Results, number
from unisono.studies.study import StudyConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 1000
MOST_COLUMNS = 3
PANEL = 3.2
"""Inches of a panel's side."""


def draw_maps(figure: Figure, results: Results) -> None:
    """Draw a map of every cell's first finished run, with the study's first metric in its title.

    Args:
        figure: an empty one.
        results: of the study.
    """
    panels = _panels(results)
    rows = -(-len(panels) // MOST_COLUMNS)
    columns = -(-len(panels) // rows)
    figure.set_size_inches(PANEL * columns, (PANEL + 0.4) * rows + 0.5)
    metric = results.study.config.metrics[0]
    names: tuple[str, ...] = ()
    for place, cell_result in enumerate(panels, start=1):
        points, labels, names = _points(cell_result.cell, results.study.config)
        kind = chosen_projection("tsne", len(points))
        places = project([points], kind, cell_result.cell.seed)[0]
        axes = figure.add_subplot(rows, columns, place)
        for label in range(len(names)):
            chosen = labels == label
            axes.scatter(places[chosen, 0], places[chosen, 1], s=5, linewidths=0, color=LIGHT[label % len(LIGHT)])
        axes.set_title(_title(cell_result, metric), fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_aspect("equal", adjustable="datalim")
        axes.spines[:].set_color("0.8")
    _add_classes(figure, names)


def _panels(results: Results) -> list[CellResult]:
    """Return the first finished run of every cell, in the order of the table."""
    found = []
    for setting in results.study.setting_names:
        for variant in results.study.row_names:
            found += results.finished(variant, setting)[:1]
    return found


def _title(cell_result: CellResult, metric: str) -> str:
    setting = "" if cell_result.cell.setting == "all" else f", {cell_result.cell.setting}"
    value = cell_result.values.get(metric)
    return f"{cell_result.cell.variant}{setting}" + ("" if value is None else f"\n{metric} {number(value, metric)}")


def _points(cell: Cell, config: StudyConfig) -> tuple[Array, Array, tuple[str, ...]]:
    """Return the points of test samples, the number of each one's colour, and the names of the colours."""
    experiment = Experiment.prepare(cell.config())
    judged = experiment.probe_data().judged
    samples, true_labels = judged.read(), judged.labels
    server = experiment.initial_server() if cell.untrained else load(cell.path).server
    samples = samples[:MOST_POINTS]
    assignments = None
    if "clusters" in (config.map_points, config.map_colours):
        clusters = experiment.method.cluster_model(server)
        if clusters is None:
            raise UserError(
                f"{cell.title} has no clusters to draw: set study.map_points = 'features' and study.map_colours = 'classes'."
            )
        assignments = embed(clusters, samples).double().softmax(dim=1).numpy()
    if assignments is not None and config.map_points == "clusters":
        points = assignments
    else:
        points = embed(experiment.method.encoder(server), samples).double().numpy()
    if assignments is not None and config.map_colours == "clusters":
        return points, assignments.argmax(axis=1), tuple(f"cluster {number}" for number in range(assignments.shape[1]))
    labels = np.zeros(len(samples)) if true_labels is None else true_labels[:MOST_POINTS].numpy()
    return points, labels, experiment.dataset.class_names if true_labels is not None else ("samples",)


def _add_classes(figure: Figure, names: tuple[str, ...]) -> None:
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color=LIGHT[place % len(LIGHT)], marker="o", markersize=4, linestyle="", label=name)
        for place, name in enumerate(names)
    ]
    if len(marks) > 1:
        figure.legend(handles=marks, loc="outside lower center", ncols=min(len(marks), 5), fontsize=8, frameon=False)
