"""Devices and threads of a run."""

from __future__ import annotations

import os

import torch

from unisono.core.errors import UserError
from unisono.core.threads import threads

__all__ = ["num_cores", "resolve_devices", "threads"]


def resolve_devices(name: str) -> list[torch.device]:
    """Return the devices that workers are spread over.

    Args:
        name: ``auto`` (all GPUs, else Apple's, else the CPU), ``cpu``, ``cuda`` (all GPUs), ``cuda:1`` or ``mps``.
    """
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if has_cuda else "mps" if has_mps else "cpu"
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (index and not index.isdigit()):
        raise UserError(f"engine.device must be auto, cpu, cuda, cuda:INDEX or mps, got {name!r}.")
    if (kind == "cuda" and not has_cuda) or (kind == "mps" and not has_mps):
        raise UserError(f"engine.device is {name!r}, but this machine has no {kind} device: use auto or cpu.")
    if kind == "cuda" and not index:
        return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    if index and int(index) >= torch.cuda.device_count():
        raise UserError(f"engine.device is {name!r}, but this machine has {torch.cuda.device_count()} GPUs, counted from 0.")
    return [torch.device(name)]


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
