"""Networks that compute in half precision and answer in float32.

The line is drawn at the networks, so that all else stays in float32 without a word of the method: views, losses, moving
averages, clustering and what leaves a client. Weights and the statistics of norms are float32 too; autocast rounds what a layer
reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

Precision = Literal["auto", "fp32", "bf16", "fp16"]
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


SLOW_IN_HALF = ("cfcl-cnn",)
"""Backbones so small that autocast costs more than bf16 saves on a CPU; ``benchmarks/precision.py`` measures all of them."""


def fitting_precision(precision: Precision, has_bf16: bool, backbone: str, on_gpu: bool) -> Precision:
    """Return bf16 or fp32 in place of ``auto``: by what is faster, from the names alone, so that it never changes by chance.

    ``benchmarks/precision-accuracy.json`` has what bf16 costs: nothing that five seeds of SimCLR and Orchestra could show on
    CIFAR-10.

    Args:
        precision: as it was asked for.
        has_bf16: whether the processor multiplies bf16 itself.
        backbone: name of the encoder.
        on_gpu: whether clients compute on a GPU.
    """
    if precision != "auto":
        return precision
    return "bf16" if has_bf16 and (on_gpu or backbone not in SLOW_IN_HALF) else "fp32"


def has_bf16(device: torch.device) -> bool:
    """Return whether a GPU, or this processor (AVX-512 BF16, AMX), multiplies bf16 itself."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    found = torch.cpu.get_capabilities()
    return device.type == "cpu" and any(bool(found.get(name)) for name in ("avx512_bf16", "amx_bf16"))


class HalfPrecision(nn.Module):
    """The same network under autocast, with an output in float32.

    Args:
        net: takes a tensor, and returns one or a tuple of them.
        dtype: of its layers' inputs and outputs.
    """

    def __init__(self, net: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.net = net
        self.dtype = dtype

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.net, name)

    def forward(self, x: Tensor, *others: Any) -> Any:
        """Return the output of ``net``; each of them in float32 where it returns several tensors."""
        # A weight that was rounded without gradients must not serve a pass that needs them.
        with torch.autocast(x.device.type, dtype=self.dtype, cache_enabled=torch.is_grad_enabled()):
            output = self.net(x, *others)
        return tuple(part.float() for part in output) if isinstance(output, tuple) else output.float()


def rounded_once(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return a block in which a weight is rounded once, however many passes read it: the forward passes of one step."""
    return torch.autocast(device.type, enabled=False) if precision in _TYPES else nullcontext()


@contextmanager
def in_precision(nets: nn.ModuleDict, precision: Precision) -> Iterator[None]:
    """Let every network compute in this precision inside the block; ``auto`` and ``fp32`` change nothing."""
    if precision not in _TYPES:
        yield
        return
    whole = dict(nets.items())
    # A module without a forward pass, which only holds tensors, stays what it is.
    callable_ = {name: net for name, net in whole.items() if type(net).forward is not nn.Module.forward}
    nets.update({name: HalfPrecision(net, _TYPES[precision]) for name, net in callable_.items()})
    try:
        yield
    finally:
        nets.update(whole)
