"""Sheet of views: a row per sample, with the original and several first and second views."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unisono.data.views import Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAP = 0.08
"""Between two cells, in widths of a cell; a gap of three times this parts the original, first views and second views."""
SERIES_RATIO = 1.6
"""Width over height of a cell that shows a series."""
INCHES = 0.8
"""Height of a row."""


def draw_views(views: Views, x: Tensor, num_views: int, generator: torch.Generator, title: str, path: Path) -> None:
    """Write a sheet of views as an image whose format the path's suffix names.

    Args:
        views: what makes them.
        x: floats, images of shape (rows, channels, height, width) or series of shape (rows, channels, length).
        num_views: first views per sample, and second views.
        generator: draws the views.
        title: stands above the sheet.
        path: the file to write.
    """
    from matplotlib.figure import Figure

    pairs = [views.pair(x, generator) for _ in range(num_views)]
    blocks = [("original", [x]), ("first views", [pair[0] for pair in pairs]), ("second views", [pair[1] for pair in pairs])]
    ratio = x.shape[3] / x.shape[2] if x.dim() == 4 else SERIES_RATIO
    lefts, left = [], 0.0
    for _, columns in blocks:
        lefts.append([left + column * (ratio + GAP) for column in range(len(columns))])
        left = lefts[-1][-1] + ratio + 3 * GAP
    width, height = left - 3 * GAP, len(x) * (1 + GAP) - GAP
    figure = Figure(figsize=(width * INCHES + 0.2, height * INCHES + 0.7))
    axes = figure.add_axes((0.1 / figure.get_figwidth(), 0.1 / figure.get_figheight(), width * INCHES / figure.get_figwidth(),
                            height * INCHES / figure.get_figheight()))  # fmt: skip
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)
    for (name, columns), places in zip(blocks, lefts, strict=True):
        axes.text((places[0] + places[-1] + ratio) / 2, -GAP, name, ha="center", va="bottom", fontsize=8)
        for column, place in zip(columns, places, strict=True):
            for row in range(len(x)):
                top = row * (1 + GAP)
                if x.dim() == 4:
                    extent = (place, place + ratio, top + 1, top)
                    axes.imshow(_pixels(column[row]), extent=extent, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
                else:
                    _draw_series(axes, (column[row] - low[row]) / (high[row] - low[row]).clamp_min(1e-6), place, top, ratio)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="auto")
    figure.text(0.5, 1 - 0.12 / figure.get_figheight(), title, ha="center", va="top", fontsize=9)
    figure.savefig(path, dpi=120)


def _pixels(image: Tensor) -> NDArray[np.float32]:
    """Return an image as matplotlib takes it; with neither one nor three channels, the mean of them in grey."""
    if len(image) == 3:
        return image.permute(1, 2, 0).numpy()
    return image.mean(dim=0).numpy()


def _draw_series(axes: Axes, series: Tensor, left: float, top: float, width: float) -> None:
    """Draw the channels of a series, scaled to [0, 1] as the original is, into a cell; what leaves the cell is cut."""
    times = np.linspace(left, left + width, series.shape[1])
    for channel, values in enumerate(series.clamp(-0.05, 1.05)):
        axes.plot(times, (top + 1 - values).numpy(), color=f"C{channel % 10}", linewidth=0.6)
