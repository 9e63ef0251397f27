"""Number formats and memory formats: time of a training step, taken in turn."""

from __future__ import annotations

import time
from itertools import product
from typing import Literal

import torch
from torch import nn

from unisono.models.architectures.convnet import ChannelsLast
from unisono.models.backbones import ModelConfig, make_backbone
from unisono.models.half_precision import Precision, in_precision

BATCH_SIZE = 64
REPEATS, STEPS = 12, 3
CASES: tuple[tuple[tuple[int, int, int], ModelConfig], ...] = tuple(
    (shape, ModelConfig(backbone=backbone, width=width, norm=norm))
    for (shape, backbone, width), norm in product(
        (((1, 28, 28), "convnet", 1.0), ((3, 32, 32), "convnet", 1.0), ((3, 32, 32), "resnet18", 0.25)), ("batch", "group")
    )
)
Memory = Literal["plain", "last", "weights"]
FORMATS: dict[str, tuple[Precision, Memory]] = {
    "fp32 plain": ("fp32", "plain"),
    "fp32": ("fp32", "last"),
    "fp32 cl": ("fp32", "weights"),
    "bf16 plain": ("bf16", "plain"),
    "bf16": ("bf16", "last"),
    "bf16 cl": ("bf16", "weights"),
}
"""Precision and memory: nothing in channels-last memory, activations (the default), or activations and weights."""


class Step:
    """Training steps of a backbone on random views, on one thread."""

    def __init__(self, shape: tuple[int, int, int], config: ModelConfig, precision: Precision, memory: Memory) -> None:
        torch.manual_seed(0)
        self.nets = nn.ModuleDict({"encoder": make_backbone(config, shape, (0.5,), (0.25,))})
        if memory == "plain":
            for parent in list(self.nets.modules()):
                for name, layer in list(parent.named_children()):
                    if isinstance(layer, ChannelsLast):
                        setattr(parent, name, nn.Identity())
        if memory == "weights":
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
    """Prints the fastest step of every format; weights in channels-last memory are marked cl, convnets without any plain."""
    torch.set_num_threads(1)
    print(f"training step, {BATCH_SIZE} views, 1 thread, milliseconds; activations in channels-last memory unless plain")
    print(f"{'':32}" + "".join(f"{name:>12}" for name in FORMATS))
    for shape, config in CASES:
        shown = {name: way for name, way in FORMATS.items() if config.backbone == "convnet" or way[1] != "plain"}
        steps = {name: Step(shape, config, *way) for name, way in shown.items()}
        rounds = [{name: step.seconds() for name, step in steps.items()} for _ in range(REPEATS)]
        fastest = {name: f"{1000 * min(times[name] for times in rounds):.1f}" for name in steps}
        label = f"{config.backbone} x {config.width:g}, {'x'.join(map(str, shape))}, {config.norm}"
        print(f"{label:32}" + "".join(f"{fastest.get(name, ''):>12}" for name in FORMATS), flush=True)


if __name__ == "__main__":
    report()
