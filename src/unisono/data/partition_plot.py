"""Plot of a partition: one bar per client, one colour per class, and beside it the rotations of clients' images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unisono.data.partition import Partition

# Paul Tol's "muted" scheme: ten colours that remain distinct to the colour-blind.
COLOURS = ("#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB")


def draw_partition(
    partition: Partition, labels: Tensor | None, class_names: Sequence[str] | None, path: Path, turns: Tensor | None = None
) -> None:
    """Write stacked horizontal bars, samples of each class per client, as an image whose format the path's suffix names.

    Args:
        partition: who holds what.
        labels: shape (num_samples,); None draws plain sizes.
        class_names: names for the legend; None uses the labels themselves.
        path: the file to write.
        turns: samples per client and bin of angles, shape (num_clients, num_bins); None where nothing is rotated.
    """
    from matplotlib.figure import Figure

    counts = (partition.sizes[:, None] if labels is None else partition.class_counts(labels)).numpy()
    num_clients, num_classes = counts.shape
    figure = Figure(figsize=(8 if turns is None else 14, _height(num_clients)), layout="constrained")
    axes = figure.add_subplot(1, 1 if turns is None else 2, 1)
    colours = _colours(num_classes)
    _draw_bars(axes, counts, colours)
    axes.set_title(f"{counts.sum()} samples of {num_clients} clients")
    if labels is not None:
        _add_key(figure, axes, colours, class_names)
    if turns is not None:
        _draw_turns(figure, figure.add_subplot(1, 2, 2, sharey=axes), turns.numpy())
    figure.savefig(path, dpi=120)


def _draw_bars(axes: Any, counts: NDArray[np.int64], colours: Sequence[Any]) -> None:
    """Draw stacked horizontal bars, one per row of counts, shape (num_clients, num_parts)."""
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import MaxNLocator

    clients, parts = counts.nonzero()
    corners = list(_bars(counts)[clients, parts])
    axes.add_collection(PolyCollection(corners, facecolors=[colours[number] for number in parts.tolist()], antialiased=False))
    axes.set(xlabel="samples", ylabel="client", xlim=(0, counts.sum(axis=1).max() * 1.02), ylim=(len(counts) - 0.5, -0.5))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)


def _draw_turns(figure: Any, axes: Any, turns: NDArray[np.int64]) -> None:
    """Draw the same bars for angles, with colours from a circular scale."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    num_bins = turns.shape[1]
    colours = [colormaps["twilight"](number / num_bins) for number in range(num_bins)]
    _draw_bars(axes, turns, colours)
    axes.set_title("rotation of images")
    edges = np.linspace(0, 360, num_bins + 1)
    scale = ScalarMappable(BoundaryNorm(edges, num_bins), ListedColormap(colours))
    figure.colorbar(scale, ax=axes, fraction=0.04).set_label("degrees")


def _bars(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the four corners of every bar, shape (num_clients, num_classes, 4, 2)."""
    right = counts.cumsum(axis=1)
    middle = np.broadcast_to(np.arange(len(counts))[:, None], counts.shape)
    # Gaps between many thin bars would only blur the picture.
    half = 0.4 if len(counts) <= 60 else 0.5
    horizontal = np.stack((right - counts, right, right, right - counts), axis=-1)
    vertical = np.stack((middle - half, middle - half, middle + half, middle + half), axis=-1)
    return np.stack((horizontal, vertical), axis=-1)


def _height(num_clients: int) -> float:
    """Return the height in inches: bars thick enough to tell apart, plots that still fit a screen."""
    return 1.8 + min(0.3 * num_clients, 4 + 0.05 * num_clients)


def _colours(num_classes: int) -> list[Any]:
    from matplotlib import colormaps

    if num_classes <= len(COLOURS):
        return list(COLOURS[:num_classes])
    return list(colormaps["viridis"](np.linspace(0, 1, num_classes)))


def _add_key(figure: Any, axes: Any, colours: Sequence[Any], class_names: Sequence[str] | None) -> None:
    """Add a legend where colours can be told apart one by one, else a colour scale."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Patch

    if len(colours) > len(COLOURS):
        scale = figure.colorbar(ScalarMappable(Normalize(0, len(colours) - 1), "viridis"), ax=axes, fraction=0.04)
        scale.set_label("class" if class_names is None else f"class, from {class_names[0]} to {class_names[-1]}")
        return
    names = class_names or range(len(colours))
    handles = [Patch(color=colour, label=str(name)) for colour, name in zip(colours, names, strict=False)]
    axes.legend(handles=handles, title="class", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
