"""Views per second on one thread, per preset and batch size.

A pair of views of a batch counts twice its size. Seconds are of processor time, so that other processes do not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.tables import Table
from unisono.data.views import PRESETS, Views, ViewsConfig, make_views

WANTED = {(3, 32, 32): 10_000, (1, 28, 28): 30_000, (3, 96, 96): None, (6, 100): None}
"""Shapes of samples, and the least rate that is asked for."""
BATCH_SIZES = [16, 64, 256]
EVERYTHING: dict[str, Any] = {
    "rotation": 30.0, "shear": 0.3, "zoom": (0.8, 1.2), "translation": 0.1, "stroke": 0.2, "noise": 0.1, "erase": 0.5,
    "solarise": 0.2, "blur": 0.5,
}  # fmt: skip
"""Added to the preset ``photos``: the most that an image can go through."""
SECONDS = 0.3


def cases(shape: tuple[int, ...]) -> Iterator[tuple[str, Views]]:
    """Yield the name and the views of every preset for samples of a shape, and of all operations at once."""
    for name, preset in PRESETS.items():
        if len(shape) == 3 or preset.series is not None:
            yield name, make_views(ViewsConfig(preset=name), shape)
    if len(shape) == 3:
        yield "all of it", make_views(ViewsConfig(preset="photos", **EVERYTHING), shape)


def views_per_second(views: Views, x: torch.Tensor) -> float:
    """Return the median rate of pairs of views of this batch."""
    generator = torch.Generator().manual_seed(0)
    views.pair(x, generator)
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.thread_time()
        views.pair(x, generator)
        times.append(time.thread_time() - start)
    return 2 * len(x) / statistics.median(times)


def tables() -> list[Table]:
    """Measure every preset; the table has the slowest of each shape, at its best batch size."""
    torch.set_num_threads(1)
    rows = []
    for shape, wanted in WANTED.items():
        best = {
            name: max(views_per_second(views, torch.rand(size, *shape)) for size in BATCH_SIZES) for name, views in cases(shape)
        }
        for name, rate in sorted(best.items(), key=lambda entry: entry[1])[:2]:
            verdict = "" if wanted is None else f"{wanted:,}, {'reached' if rate >= wanted else 'missed'}"
            rows.append(["x".join(map(str, shape)), name, f"{rate:,.0f}", f"{max(best.values()):,.0f}", verdict])
    text = (
        "Views per second of one thread's time, at the best of the batch sizes 16, 64 and 256, median over 0.3 s: the two "
        "slowest presets of every shape of samples, and the fastest rate."
    )
    return [Table("Views", text, ["shape", "preset", "views/s", "fastest preset", "wanted"], rows)]
