"""Micro-batches against whole batches: peak memory and time of a training step of contrastive clustering."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import torch

BATCH_SIZES = (16, 64, 256, 1024)
MICRO_BATCH = 16
STEPS = 3


def measure_here(batch_size: int, micro_batch: int | None) -> dict[str, float]:
    """Peak resident size of this process over a few steps, what it was before them, and processor seconds of the fastest step."""
    from benchmarks.workload import peak_megabytes
    from unisono.config import resolve
    from unisono.core.method import Setting
    from unisono.methods.local_training import Batch, LocalTraining
    from unisono.models.micro_batch import in_parts

    torch.set_num_threads(1)
    tree: dict[str, Any] = {"method": {"name": "cc"}, "model": {"backbone": "resnet18", "width": 0.25}}
    config = resolve(tree)
    setting = Setting((3, 32, 32), (0.5,), (0.25,), 10, 1, 1, config.method_sections)
    method = config.method_class(config.method, setting)
    if not isinstance(method, LocalTraining):
        raise TypeError("the workload trains a loss")
    nets = method.build().train()
    if not isinstance(nets, torch.nn.ModuleDict):
        raise TypeError("a method builds a ModuleDict")
    optimizer = torch.optim.Adam(nets.parameters(), lr=3e-4)
    pixels = torch.randint(0, 256, (batch_size, 3, 32, 32), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    before = peak_megabytes()
    times = []
    with in_parts(nets, micro_batch):
        for _ in range(STEPS):
            start = time.process_time()
            batch = Batch(pixels.float().div_(255), torch.arange(batch_size), None)
            optimizer.zero_grad()
            method.loss(nets, batch, generator)["loss"].backward()
            optimizer.step()
            times.append(time.process_time() - start)
    return {"before": before, "peak": peak_megabytes(), "seconds": min(times)}


def measure(batch_size: int, micro_batch: int | None) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.micro_batch", str(batch_size), str(micro_batch or 0)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(output.splitlines()[-1]))


def report() -> None:
    """Prints the table; ratios of memory are to the peak of a whole batch of 16, ratios of time to the whole batch."""
    print(f"contrastive clustering, resnet18 x 0.25, 32 x 32 images, 1 thread; micro-batches of {MICRO_BATCH} views")
    print(f"{'batch':>6} {'whole MB':>9} {'parts MB':>9} {'whole/16':>9} {'parts/16':>9} {'time ratio':>11}")
    smallest = measure(BATCH_SIZES[0], None)["peak"]
    for batch_size in BATCH_SIZES:
        whole, parts = measure(batch_size, None), measure(batch_size, MICRO_BATCH)
        ratios = f"{whole['peak'] / smallest:9.2f} {parts['peak'] / smallest:9.2f} {parts['seconds'] / whole['seconds']:11.2f}"
        print(f"{batch_size:6d} {whole['peak']:9.0f} {parts['peak']:9.0f} {ratios}")
    print(f"of all of these, {whole['before']:.0f} MB are the program itself, before the first step")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure_here(int(sys.argv[1]), int(sys.argv[2]) or None)))
    else:
        report()
