"""Lossy codes for tensors: the largest entries only, and 8 bits per entry.

A code is again a mapping of named tensors, so it crosses the same wires. ``name#part`` marks the parts of a tensor's code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

LEVELS = 127


def compress(
    tensors: Mapping[str, Tensor], top_k: float | None, bits: int | None, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return the code of every tensor; first the largest entries are chosen, then they are quantised."""
    coded: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        values = tensor
        if top_k is not None:
            values, indices = largest_entries(tensor, top_k)
            coded[f"{name}#indices"] = indices
            coded[f"{name}#shape"] = torch.tensor(tensor.shape, dtype=torch.int32)
        if bits is None:
            coded[f"{name}#values"] = values
        else:
            coded[f"{name}#levels"], coded[f"{name}#step"] = quantize(values, generator)
    return coded


def decompress(
    coded: Mapping[str, Tensor], kept: float | None = None, like: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Return the tensors that a code stands for, in order; raise a ValueError, and take no memory, if they are larger.

    Args:
        coded: what ``compress`` returned, or what somebody says it did.
        kept: share of the entries that every code holds; None believes the code.
        like: tensors of the shapes that are known.
    """
    names = dict.fromkeys(key.rpartition("#")[0] for key in coded)
    known = like or {}
    return {
        name: _decode({key.rpartition("#")[2]: coded[key] for key in _parts(coded, name)}, kept, known.get(name))
        for name in names
    }


def largest_entries(tensor: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return values and flat indices (int32, ascending) of the ``ceil(share * n)`` entries of largest magnitude."""
    flat = tensor.flatten()
    num_kept = math.ceil(share * flat.numel() - 1e-9)  # 0.07 * 100 is 7.000000000000001
    indices = flat.abs().topk(max(num_kept, min(1, flat.numel()))).indices.sort().values
    return flat[indices], indices.to(torch.int32)


def quantize(values: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return int8 levels and the step between them; stochastic rounding, so the expectation is exact."""
    largest = values.abs().max().float() if values.numel() else torch.tensor(0.0)
    step = (largest / LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
    levels = torch.floor(values / step + torch.rand(values.shape, generator=generator))
    return levels.clamp_(-LEVELS, LEVELS).to(torch.int8), step.reshape(1)


def _parts(coded: Mapping[str, Tensor], name: str) -> list[str]:
    return [key for part in ("indices", "shape", "values", "levels", "step") if (key := f"{name}#{part}") in coded]


def _decode(parts: Mapping[str, Tensor], kept: float | None, like: Tensor | None) -> Tensor:
    values = parts["values"] if "values" in parts else parts["levels"].float() * parts["step"].reshape(())
    if "indices" not in parts:
        return values
    shape = parts["shape"].tolist()
    if like is not None and shape != list(like.shape):
        raise ValueError(f"a code stands for a tensor of shape {shape}, expected {list(like.shape)}")
    if kept is not None and math.prod(shape) > len(values) / kept + 1:
        raise ValueError(f"a code of {len(values)} entries stands for a tensor of shape {shape}")
    return torch.zeros(math.prod(shape), dtype=values.dtype).index_copy_(0, parts["indices"].long(), values).reshape(shape)
