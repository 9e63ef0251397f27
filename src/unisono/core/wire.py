"""Layout of tensors in bytes, for pipes, shared memory and client state.

No pickle: a header in JSON (names, types, shapes, offsets, scalars), then the raw numbers, aligned to 64 bytes, then a checksum
of all before it.
"""

from __future__ import annotations

import copyreg
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from unisono.core.config import parse_json
from unisono.core.payload import Payload, Scalar

ALIGNMENT = 64
CHECKSUM = 4
"""Bytes of the checksum at the end."""
MOST_HEADER = 2**18
"""Bytes of a header of others that are always read: some thousand tensors."""
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16,
)}  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """Place of one tensor in a buffer."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class Layout:
    """Places of all tensors of a payload in a buffer, its scalars, and its groups, since some may hold no tensor."""

    slots: Mapping[str, Slot]
    scalars: Mapping[str, Scalar]
    num_bytes: int
    groups: tuple[str, ...] = ()


def lay_out(payload: Payload) -> Layout:
    """Return places for all tensors of a payload, one after the other."""
    slots: dict[str, Slot] = {}
    offset = 0
    for name, tensor in payload.tensors():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise ValueError(f"{name} has type {dtype}, and only {', '.join(_DTYPES)} cross a wire")
        if tensor.layout is not torch.strided:
            raise ValueError(f"{name} is a sparse tensor, and only dense ones cross a wire: call to_dense()")
        num_bytes = tensor.numel() * tensor.element_size()
        slots[name] = Slot(dtype, tuple(tensor.shape), offset, num_bytes)
        offset += -(-num_bytes // ALIGNMENT) * ALIGNMENT
    return Layout(slots, dict(payload.scalars), offset, tuple(payload.groups))


def write(payload: Payload, layout: Layout, buffer: Tensor) -> None:
    """Copy the tensors of a payload to their places.

    Args:
        payload: what ``layout`` was made for.
        layout: the places.
        buffer: uint8, at least ``layout.num_bytes`` long.
    """
    places = _views(layout, buffer)
    for name, tensor in payload.tensors():
        places[name].copy_(tensor.detach())


def read(layout: Layout, buffer: Tensor) -> Payload:
    """Return the payload in a buffer; its tensors are views, not copies."""
    return Payload.unflatten(_views(layout, buffer), layout.scalars, layout.groups)


def to_bytes(payload: Payload) -> bytes:
    """Return the whole payload as bytes, bit for bit; ``from_bytes`` undoes it."""
    layout = lay_out(payload)
    header = json.dumps(
        {
            "slots": {name: [s.dtype, list(s.shape), s.offset, s.num_bytes] for name, s in layout.slots.items()},
            "scalars": dict(layout.scalars),
            "num_bytes": layout.num_bytes,
            "groups": layout.groups,
        }
    ).encode()
    buffer = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    write(payload, layout, buffer)
    data = len(header).to_bytes(8, "little") + header + buffer.numpy().tobytes()
    return data + checksum(data)


def checksum(data: bytes | memoryview) -> bytes:
    """Return the checksum that ends a message; it finds damage, not forgery."""
    return zlib.crc32(data).to_bytes(CHECKSUM, "little")


def from_bytes(data: bytes, of_others: bool = False) -> Payload:
    """Return the payload that ``to_bytes`` wrote; raise a ValueError that says the bytes are damaged.

    Args:
        data: the bytes.
        of_others: refuse a header so long that what it describes could take many times the memory of the bytes.
    """
    start, end, view = 8 + int.from_bytes(data[:8], "little"), len(data) - CHECKSUM, memoryview(data)
    try:
        if end < 8 or checksum(view[:end]) != view[end:]:
            raise ValueError("its checksum is wrong")
        if of_others and start > max(MOST_HEADER, len(data) // 64):
            raise ValueError(f"its header of {start} bytes is too long for {len(data)} bytes in all")
        header = parse_json(bytes(view[8:start]))
        slots = {name: _slot(header["num_bytes"], *parts) for name, parts in header["slots"].items()}
        layout = Layout(slots, header["scalars"], header["num_bytes"], tuple(header["groups"]))
        if end - start != layout.num_bytes:
            raise ValueError(f"{layout.num_bytes} bytes of tensors became {end - start}")
        _check_apart(slots.values())
        # torch makes no tensor of an empty buffer.
        buffer = torch.frombuffer(bytearray(view[start:end] or b"\0"), dtype=torch.uint8)
        return read(layout, buffer)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise ValueError(f"not a payload, or a damaged one: {error}") from error


def _slot(total: int, dtype: str, shape: list[int], offset: int, num_bytes: int) -> Slot:
    """Return a slot from a header; raise a ValueError if its parts do not fit each other."""
    fits = 0 <= offset <= total - num_bytes and min(shape, default=0) >= 0
    if not fits or math.prod(shape) * _DTYPES[dtype].itemsize != num_bytes:
        raise ValueError(f"{dtype} of shape {shape} does not lie in bytes {offset} to {offset + num_bytes} of {total}")
    return Slot(dtype, tuple(shape), offset, num_bytes)


def _check_apart(slots: Iterable[Slot]) -> None:
    """Raise a ValueError if tensors overlap: a small message would become many large tensors."""
    for first, second in pairwise(sorted((s for s in slots if s.num_bytes), key=lambda slot: slot.offset)):
        if first.offset + first.num_bytes > second.offset:
            raise ValueError(f"two tensors share byte {second.offset}")


def _views(layout: Layout, buffer: Tensor) -> dict[str, Tensor]:
    views = {}
    for name, slot in layout.slots.items():
        dtype = _DTYPES[slot.dtype]
        if slot.num_bytes == 0:
            views[name] = torch.empty(slot.shape, dtype=dtype)
        else:
            views[name] = buffer[slot.offset : slot.offset + slot.num_bytes].view(dtype).reshape(slot.shape)
    return views


# A pickled payload is one run of bytes; torch's own way would open a file per tensor between processes.
copyreg.pickle(
    Payload, lambda payload: (from_bytes, (to_bytes(payload),)) if payload.groups or payload.scalars else (Payload, ())
)
