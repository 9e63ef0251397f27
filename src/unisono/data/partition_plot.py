"""A picture of a partition: one bar per client, one colour per class."""

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


def draw_partition(partition: Partition, labels: Tensor | None, class_names: Sequence[str] | None, path: Path) -> None:
    """Writes stacked horizontal bars, samples of each class per client, as an image whose format the path's suffix names.

    Args:
        partition: who holds what.
        labels: shape (num_samples,); None draws plain sizes.
        class_names: names for the legend; None uses the labels themselves.
        path: the file to write.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    counts = (partition.sizes[:, None] if labels is None else partition.class_counts(labels)).numpy()
    num_clients, num_classes = counts.shape
    colours = _colours(num_classes)
    figure = Figure(figsize=(8, _height(num_clients)), layout="constrained")
    axes = figure.add_subplot()
    clients, classes = counts.nonzero()
    corners = list(_bars(counts)[clients, classes])
    bars = PolyCollection(corners, facecolors=[colours[number] for number in classes], antialiased=False)
    axes.add_collection(bars)
    axes.set(xlabel="samples", ylabel="client", xlim=(0, counts.sum(axis=1).max() * 1.02), ylim=(num_clients - 0.5, -0.5))
    axes.set_title(f"{counts.sum()} samples of {num_clients} clients")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    if labels is not None:
        _add_key(figure, axes, colours, class_names)
    figure.savefig(path, dpi=120)


def _bars(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The four corners of every bar, shape (num_clients, num_classes, 4, 2)."""
    right = counts.cumsum(axis=1)
    middle = np.broadcast_to(np.arange(len(counts))[:, None], counts.shape)
    # Gaps between many thin bars would only blur the picture.
    half = 0.4 if len(counts) <= 60 else 0.5
    horizontal = np.stack((right - counts, right, right, right - counts), axis=-1)
    vertical = np.stack((middle - half, middle - half, middle + half, middle + half), axis=-1)
    return np.stack((horizontal, vertical), axis=-1)


def _height(num_clients: int) -> float:
    """Inches: bars thick enough to tell apart, pages that still fit a screen."""
    return 1.8 + min(0.3 * num_clients, 4 + 0.05 * num_clients)


def _colours(num_classes: int) -> list[Any]:
    from matplotlib import colormaps

    if num_classes <= len(COLOURS):
        return list(COLOURS[:num_classes])
    return list(colormaps["viridis"](np.linspace(0, 1, num_classes)))


def _add_key(figure: Any, axes: Any, colours: Sequence[Any], class_names: Sequence[str] | None) -> None:
    """A legend where colours can be told apart one by one, else a colour scale."""
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
