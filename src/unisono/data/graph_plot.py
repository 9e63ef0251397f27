"""Plot of a graph of clients: their links, and the classes that each one holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unisono.data.graph import ClientGraph
from unisono.data.partition_plot import COLOURS

NODE = 0.035
"""Radius of a client in a plot of width 1."""


def draw_graph(graph: ClientGraph, class_counts: Tensor | None, class_names: Sequence[str], path: Path) -> None:
    """Write clients and links as an image whose format the path's suffix names; a client is a pie of its classes.

    Args:
        graph: the links.
        class_counts: samples per client and class, shape (num_clients, num_classes); None draws plain discs.
        class_names: for the legend.
        path: the file to write.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    places = _places(graph)
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.add_subplot()
    axes.add_collection(LineCollection([places[list(edge)] for edge in graph.edges], colors="#888888", linewidths=1, zorder=1))
    radius = NODE * min(1.0, (20 / graph.num_clients) ** 0.5)
    for client, place in enumerate(places):
        _draw_client(axes, place, radius, None if class_counts is None else class_counts[client].numpy())
        axes.text(place[0], place[1] + 1.1 * radius, str(client), ha="center", va="bottom", fontsize=8)
    axes.set(xlim=(-0.06, 1.06), ylim=(-0.06, 1.06), aspect="equal")
    axes.set_axis_off()
    if class_counts is not None and len(class_names) <= len(COLOURS):
        handles = [Patch(color=colour, label=name) for colour, name in zip(COLOURS, class_names, strict=False)]
        figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    axes.set_title(f"{graph.num_clients} clients, {len(graph.edges)} links, {graph.mean_degree:.1f} neighbours on average")
    figure.savefig(path, dpi=120)


def _places(graph: ClientGraph) -> NDArray[np.float64]:
    """Return the places of clients, shape (num_clients, 2); on a circle where the graph has none."""
    if graph.places is not None:
        return graph.places
    angles = 2 * np.pi * np.arange(graph.num_clients) / graph.num_clients
    return 0.5 + 0.48 * np.stack((np.sin(angles), np.cos(angles)), axis=1)


def _draw_client(axes: Any, place: NDArray[np.float64], radius: float, counts: NDArray[np.int64] | None) -> None:
    from matplotlib.patches import Circle, Wedge

    if counts is None or counts.sum() == 0 or len(counts) > len(COLOURS):
        axes.add_patch(Circle(tuple(place), radius, color=COLOURS[0], zorder=2))
        return
    ends = np.concatenate(([0], counts.cumsum())) * 360 / counts.sum()
    for colour, start, end in zip(COLOURS, ends[:-1], ends[1:], strict=False):
        if end > start:
            axes.add_patch(Wedge(tuple(place), radius, start, end, color=colour, zorder=2))
