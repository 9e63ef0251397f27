"""Number formats and memory formats: time of a training step, taken in turn, and whether the choice of ``auto`` is the fastest.

Every format is measured for every kind of network that ``training.precision = "auto"`` may meet; the choice itself goes by name
and shape alone (``models/half_precision.py``, ``models/memory_format.py``), so that results repeat bit by bit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.tables import Table
from benchmarks.workload import Rounds, experiment
from unisono.models.backbones import ModelConfig, make_backbone
from unisono.models.half_precision import Precision, fitting_precision, has_bf16, in_precision
from unisono.models.memory_format import ChannelsLast

BATCH_SIZE = 32
REPEATS = 9
TOLERANCE = 1.05
"""A choice is right if no other is faster by more than this: two runs of the same step differ as much."""
WANTED = 1.4


@dataclass(frozen=True)
class Case:
    """A network and the shape of its samples."""

    shape: tuple[int, ...]
    backbone: str
    width: float = 1.0
    norm: Literal["batch", "group"] = "batch"
    over: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Words for the table."""
        norm = f", {self.norm} norm" if self.backbone.startswith(("convnet", "resnet")) else ""
        more = "".join(f", {key} {value}" for key, value in self.over.items())
        return f"{self.backbone} x {self.width:g}{norm}, {'x'.join(map(str, self.shape))}{more}"


SHAPES: tuple[tuple[tuple[int, ...], str, float, dict[str, Any]], ...] = (
    ((1, 28, 28), "convnet", 1.0, {}),
    ((3, 32, 32), "convnet", 1.0, {}),
    ((3, 64, 64), "convnet", 1.0, {}),
    ((1, 28, 28), "resnet18", 0.25, {}),
    ((3, 32, 32), "resnet18", 0.25, {}),
    ((3, 32, 32), "resnet18", 1.0, {"stem": "imagenet"}),
    ((3, 32, 32), "resnet50", 0.25, {}),
    ((6, 128), "resnet1d", 0.5, {}),
)
NORMS: tuple[Literal["batch", "group"], ...] = ("batch", "group")
CASES = (
    *(Case(shape, backbone, width, norm, over) for shape, backbone, width, over in SHAPES for norm in NORMS),
    Case((3, 32, 32), "cct-2-3x2"),
    Case((3, 32, 32), "vit", 0.25),
    Case((1, 28, 28), "cfcl-cnn"),
)
FORMATS: dict[str, tuple[Precision, bool]] = {
    "fp32": ("fp32", False),
    "fp32, channels last": ("fp32", True),
    "bf16": ("bf16", False),
    "bf16, channels last": ("bf16", True),
}


class Step:
    """Training steps of a backbone on random views, on one thread, with activations in a memory format."""

    def __init__(self, case: Case, precision: Precision, channels_last: bool) -> None:
        torch.manual_seed(0)
        config = ModelConfig(backbone=case.backbone, width=case.width, norm=case.norm, **case.over)
        self.nets = nn.ModuleDict({"encoder": make_backbone(config, case.shape, (0.5,), (0.25,))})
        changes = [part for part in self.nets.modules() if isinstance(part, ChannelsLast)]
        self.has_formats = bool(changes)
        self.chosen = not changes or (changes[0].in_half if precision == "bf16" else changes[0].in_full) == channels_last
        for part in changes:
            part.in_half = part.in_full = channels_last
        self.optimizer = torch.optim.SGD(self.nets.parameters(), lr=0.01, fused=True)
        self.views = torch.rand(BATCH_SIZE, *case.shape)
        self.precision = precision
        self.seconds()

    def seconds(self) -> float:
        """Processor time of a step."""
        start = time.process_time()
        self.optimizer.zero_grad()
        with in_precision(self.nets, self.precision):
            self.nets["encoder"](self.views).square().mean().backward()
        self.optimizer.step()
        return time.process_time() - start


def measure(case: Case) -> tuple[dict[str, float], str]:
    """Return the milliseconds of a step by format, median over interleaved repeats, and the format that ``auto`` takes."""
    steps = {name: Step(case, *way) for name, way in FORMATS.items()}
    if not next(iter(steps.values())).has_formats:
        steps = {name: step for name, step in steps.items() if not FORMATS[name][1]}
    rounds = [{name: step.seconds() for name, step in steps.items()} for _ in range(REPEATS)]
    chosen = fitting_precision("auto", True, case.backbone, on_gpu=False)
    choice = next(name for name, step in steps.items() if step.precision == chosen and step.chosen)
    return {name: 1000 * median(times[name] for times in rounds) for name in steps}, choice


def steps_table() -> Table:
    """Measure the step of every case in every format."""
    rows, num_right = [], 0
    for case in CASES:
        found, choice = measure(case)
        right = found[choice] <= TOLERANCE * min(found.values())
        num_right += right
        gain = min(found[name] for name in found if name.startswith("fp32")) / found[choice]
        cells = [f"{found[name]:.1f}" if name in found else "" for name in FORMATS]
        rows.append([case.name, *cells, choice, f"{gain:.2f}", "yes" if right else f"no: {min(found, key=found.__getitem__)}"])
    text = (
        f"Milliseconds of one training step of {BATCH_SIZE} views on one thread, median of {REPEATS} interleaved repeats. "
        f'"auto" takes, by the name and shape alone, bf16 where the processor multiplies it. '
        f"The choice is right (no other faster by more than {TOLERANCE - 1:.0%}) in {num_right} of {len(CASES)} cases."
    )
    if not has_bf16(torch.device("cpu")):
        text += " This processor does not multiply bf16 itself, so auto is fp32 here and the columns of bf16 are no guide."
    return Table("Number format and memory format", text, ["network", *FORMATS, "auto", "times the best fp32", "right"], rows)


def rounds_table(repeats: int = 7) -> Table:
    """Measure rounds of the embedded engine in fp32, in fp32 without our memory formats, and with ``auto``, in turn."""
    rows = []
    models: dict[str, dict[str, Any]] = {
        "convnet": {"backbone": "convnet"},
        "ResNet-18 / 4, group norm": {"backbone": "resnet18", "width": 0.25, "norm": "group"},
        "ResNet-18 / 4, batch norm": {"backbone": "resnet18", "width": 0.25},
    }
    for name, model in models.items():
        fp32, auto = (
            experiment(model, over={"training": {"precision": precision, "local_steps": 2}}) for precision in ("fp32", "auto")
        )
        with patch.object(ChannelsLast, "forward", lambda self, x: x):  # for the workers, which start here
            plain = Rounds.start(fp32)
        runs = (Rounds.start(fp32), plain, Rounds.start(auto))
        times = [[run.seconds() for run in runs] for _ in range(repeats)]
        for run in runs:
            run.engine.close()
        ratios = [median(one[number] / one[2] for one in times) for number in (0, 1)]
        rows.append([name, *(f"{median(column):.3f}" for column in zip(*times, strict=True)), *(f"{r:.2f}" for r in ratios)])
    text = (
        f"Seconds per round of SimCLR on fashion-mini (20 clients, two batches of 16 each, two workers), median of {repeats} "
        "interleaved rounds. fp32 is what a run has that sets nothing: our backbones keep activations in the faster memory "
        f"format. In the second column they keep them in torch's default format. Wanted: a ratio of at least {WANTED}."
    )
    header = ["network", "fp32", "fp32, torch's format", "auto", "ratio", "ratio to torch's format"]
    return Table('precision = "auto" in whole rounds', text, header, rows)


def tables() -> list[Table]:
    """Measure whole rounds."""
    return [rounds_table()]


def step_tables() -> list[Table]:
    """Measure single steps."""
    torch.set_num_threads(1)
    return [steps_table()]
