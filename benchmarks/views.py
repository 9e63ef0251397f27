"""Views per second on one thread, per preset and batch size: ``python -m benchmarks.views``.

A pair of views of a batch counts twice its size. Seconds are of processor time, so that other processes do not count.
"""

from __future__ import annotations

import statistics
import time
from typing import get_args

import torch

from unisono.data.views import Preset, Views, ViewsConfig, make_views

SHAPES = [(3, 32, 32), (1, 28, 28), (3, 96, 96), (6, 100)]
BATCH_SIZES = [16, 64, 256]


SECONDS = 0.5


def views_per_second(views: Views, x: torch.Tensor) -> float:
    """The median rate of pairs of views of this batch."""
    generator = torch.Generator().manual_seed(0)
    views.pair(x, generator)
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.thread_time()
        views.pair(x, generator)
        times.append(time.thread_time() - start)
    return 2 * len(x) / statistics.median(times)


def report() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    print("views per second of one thread's time")
    print(f"{'shape':>8} {'preset':>7}" + "".join(f"{f'batch {size}':>12}" for size in BATCH_SIZES))
    for shape in SHAPES:
        for preset in get_args(Preset):
            views = make_views(ViewsConfig(preset=preset), shape)
            rates = [views_per_second(views, torch.rand(size, *shape)) for size in BATCH_SIZES]
            print(f"{'x'.join(map(str, shape)):>8} {preset:>7}" + "".join(f"{rate:12,.0f}" for rate in rates))


if __name__ == "__main__":
    report()
