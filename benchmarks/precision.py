"""Number formats and memory formats: time of a training step, taken in turn."""

from __future__ import annotations

import time
from itertools import product

import torch
from torch import nn

from unisono.models.backbones import ModelConfig, make_backbone
from unisono.models.half_precision import Precision, in_precision

BATCH_SIZE = 32
REPEATS, STEPS = 12, 3
CASES: tuple[tuple[tuple[int, int, int], ModelConfig], ...] = tuple(
    (shape, ModelConfig(backbone=backbone, width=width, norm=norm))
    for (shape, backbone, width), norm in product(
        (((1, 28, 28), "convnet", 1.0), ((3, 32, 32), "convnet", 1.0), ((3, 32, 32), "resnet18", 0.25)), ("batch", "group")
    )
)
FORMATS: tuple[tuple[Precision, bool], ...] = (("fp32", False), ("fp32", True), ("bf16", False), ("bf16", True))
"""Precision, and whether weights are kept in channels-last memory."""


class Step:
    """Training steps of a backbone on random views, on one thread."""

    def __init__(self, shape: tuple[int, int, int], config: ModelConfig, precision: Precision, channels_last: bool) -> None:
        torch.manual_seed(0)
        self.nets = nn.ModuleDict({"encoder": make_backbone(config, shape, (0.5,), (0.25,))})
        if channels_last:
            self.nets = self.nets.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.nets.parameters(), lr=0.01, fused=True)
        self.views = torch.rand(BATCH_SIZE, *shape)
        self.precision = precision

    def seconds(self) -> float:
        """Processor time of a step, mean of a few."""
        start = time.process_time()
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            with in_precision(self.nets, self.precision):
                self.nets["encoder"](self.views).square().mean().backward()
            self.optimizer.step()
        return (time.process_time() - start) / STEPS


def report() -> None:
    """Prints the fastest step of every format; weights in channels-last memory are marked cl."""
    torch.set_num_threads(1)
    names = [precision + (" cl" if channels_last else "") for precision, channels_last in FORMATS]
    print(f"training step, {BATCH_SIZE} views, 1 thread, milliseconds; all with activations in channels-last memory")
    print(f"{'':32}" + "".join(f"{name:>10}" for name in names))
    for shape, config in CASES:
        steps = [Step(shape, config, *format) for format in FORMATS]
        rounds = [[step.seconds() for step in steps] for _ in range(REPEATS)]
        fastest = [1000 * min(times) for times in zip(*rounds, strict=True)]
        label = f"{config.backbone} x {config.width:g}, {'x'.join(map(str, shape))}, {config.norm}"
        print(f"{label:32}" + "".join(f"{time:10.1f}" for time in fastest), flush=True)


if __name__ == "__main__":
    report()
