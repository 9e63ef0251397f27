"""Check of tensors against a declared form: those that go to the server, and those that clients send each other."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from unisono.core.addressing import parse
from unisono.core.payload import Form, Tensors

SEALED = b"unisono sealed 1\n"
"""First bytes of a tensor that only its receivers can read."""


def check_names(group: str, tensors: Tensors, expected: Collection[str]) -> None:
    """Raise a ValueError unless a group has exactly these tensors."""
    if tensors.keys() != set(expected):
        name = sorted(tensors.keys() ^ set(expected))[0]
        raise ValueError(f"{group}/{name} is {'missing' if name in expected else 'unknown'}")


def check_form(group: str, tensors: Tensors, form: Mapping[str, Form], lengths: Mapping[str, int]) -> None:
    """Raise a ValueError unless a group has the form.

    Args:
        group: its name.
        tensors: by name.
        form: by the same names.
        lengths: of the first axis of tensors that the client received, by ``group/name``.
    """
    check_names(group, tensors, form)
    lengths = dict(lengths)
    for name, wanted in form.items():
        tensor = tensors[name]
        for axis, length in zip(wanted.shape, tensor.shape, strict=False):
            if isinstance(axis, str) and "/" not in axis and length <= wanted.most:
                lengths.setdefault(axis, length)
        if tuple(tensor.shape) != tuple(lengths.get(axis) if isinstance(axis, str) else axis for axis in wanted.shape):
            most = f" with at most {wanted.most}" if wanted.most else ""
            raise ValueError(f"{group}/{name} has shape {tuple(tensor.shape)}, expected {wanted.shape}{most}")
        if wanted.dtype is not None and tensor.dtype != wanted.dtype:
            raise ValueError(f"{group}/{name} has type {tensor.dtype}, expected {wanted.dtype}")
        is_limited = math.isfinite(wanted.low) or math.isfinite(wanted.high)
        if is_limited and tensor.numel() and not wanted.low <= float(tensor.min()) <= float(tensor.max()) <= wanted.high:
            raise ValueError(f"{group}/{name} holds values beyond {wanted.low:g} to {wanted.high:g}")


def check_mail(group: str, tensors: Tensors, form: Mapping[str, Form], lengths: Mapping[str, int]) -> None:
    """Raise a ValueError unless what a client sends to each of its neighbours has the form.

    Of a sealed tensor only the number of rows is known; its receiver checks the rest.

    Args:
        group: its name.
        tensors: by names with an address.
        form: by names without one.
        lengths: as for ``check_form``.
    """
    boxes: dict[int | None, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        place = parse(name)
        boxes.setdefault(place.receiver, {})[place.name] = tensor
    for box in boxes.values():
        check_names(group, box, form)
        sealed = [name for name in form if is_sealed(box[name])]
        for name in sealed:
            if len(box[name]) > max(1, form[name].most):
                raise ValueError(f"{group}/{name} has {len(box[name])} rows, and {form[name].most} are the most")
        plain = [name for name in form if name not in sealed]
        check_form(group, {name: box[name] for name in plain}, {name: form[name] for name in plain}, lengths)


def is_sealed(tensor: Tensor) -> bool:
    """Return whether a tensor can be read by its receivers alone."""
    if tensor.dtype != torch.uint8 or tensor.numel() < len(SEALED):
        return False
    return tensor.reshape(-1)[: len(SEALED)].numpy().tobytes() == SEALED
