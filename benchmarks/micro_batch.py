"""Micro-batches against whole batches: peak memory and time of a training step of contrastive clustering."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import torch
from torch import nn

BATCH_SIZES = (16, 64, 256, 1024)
MICRO_BATCH = 16
REPEATS = 3
LONG_STEP = 512
"""From this batch size on a step takes seconds and is measured once."""
MOST_MEMORY, MOST_TIME = 1.3, 1.6
"""What micro-batches may take, over the peak of a whole batch of 16 and over the time of the whole batch."""


class Step:
    """Steps of local training on images of 32 x 32, on one thread."""

    def __init__(self, batch_size: int) -> None:
        from unisono.config import resolve
        from unisono.core.method import RunInfo
        from unisono.methods.local_training import LocalTraining

        torch.set_num_threads(1)
        config = resolve({"method": {"name": "cc"}, "model": {"backbone": "resnet18", "width": 0.25, "norm": "group"}})
        info = RunInfo((3, 32, 32), (0.5,), (0.25,), 10, 1, 1, config.method_sections)
        method = config.method_class(config.method, info)
        if not isinstance(method, LocalTraining):
            raise TypeError("the workload trains a loss")
        self.method = method
        self.nets: nn.ModuleDict = method.build_networks()
        self.optimizer = torch.optim.Adam(self.nets.parameters(), lr=3e-4)
        self.pixels = torch.randint(0, 256, (batch_size, 3, 32, 32), dtype=torch.uint8)
        self.generator = torch.Generator().manual_seed(0)

    def seconds(self, micro_batch: int | None) -> float:
        """Processor time of the next step."""
        from unisono.methods.local_training import Batch
        from unisono.models.micro_batch import in_parts

        start = time.process_time()
        batch = Batch(self.pixels.float().div_(255), torch.arange(len(self.pixels)), None)
        self.optimizer.zero_grad()
        with in_parts(self.nets, micro_batch):
            self.method.loss(self.nets, batch, self.generator)["loss"].backward()
        self.optimizer.step()
        return time.process_time() - start


def megabytes_here(batch_size: int, micro_batch: int | None) -> list[float]:
    """Peak resident size of this process before and after two steps."""
    from benchmarks.workload import peak_megabytes

    step = Step(batch_size)
    before = peak_megabytes()
    step.seconds(micro_batch)
    step.seconds(micro_batch)
    return [before, peak_megabytes()]


def seconds_here(batch_size: int) -> list[float]:
    """The fastest step with the whole batch and the fastest in parts, taken in turn."""
    step = Step(batch_size)
    repeats = 1 if batch_size >= LONG_STEP else REPEATS
    pairs = [(step.seconds(None), step.seconds(MICRO_BATCH)) for _ in range(repeats)]
    return [min(times) for times in zip(*pairs, strict=True)]


def report() -> None:
    """Prints the table; ratios of memory are to the peak of a whole batch of 16, of time to the whole batch."""
    print(f"contrastive clustering, resnet18 x 0.25, 32 x 32 images, 1 thread; micro-batches of {MICRO_BATCH} views")
    print(f"{'batch':>6} {'whole MB':>9} {'parts MB':>9} {'whole/16':>9} {'parts/16':>9} {'time ratio':>11}")
    before, smallest = _in_a_process("memory", BATCH_SIZES[0], 0)
    memory, seconds = [], []
    for batch_size in BATCH_SIZES:
        whole, parts = (_in_a_process("memory", batch_size, size)[1] for size in (0, MICRO_BATCH))
        whole_seconds, parts_seconds = _in_a_process("time", batch_size)
        ratios = f"{whole / smallest:9.2f} {parts / smallest:9.2f} {parts_seconds / whole_seconds:11.2f}"
        print(f"{batch_size:6d} {whole:9.0f} {parts:9.0f} {ratios}", flush=True)
        if batch_size > BATCH_SIZES[0]:
            memory.append(parts / smallest)
            seconds.append(parts_seconds / whole_seconds)
    print(f"{before:.0f} MB of each are the program itself, before the first step")
    sizes = f"n = {BATCH_SIZES[1]} to {BATCH_SIZES[-1]}"
    print(f"{sizes}: memory at most {max(memory):.2f} of the peak at n = {BATCH_SIZES[0]} (to be within {MOST_MEMORY})")
    print(f"{sizes}: time at most {max(seconds):.2f} of the whole batch (to be within {MOST_TIME})")


def _in_a_process(what: str, *numbers: int) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.micro_batch", what, *map(str, numbers)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return list(json.loads(output.splitlines()[-1]))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        report()
    elif sys.argv[1] == "memory":
        print(json.dumps(megabytes_here(int(sys.argv[2]), int(sys.argv[3]) or None)))
    else:
        print(json.dumps(seconds_here(int(sys.argv[2]))))
