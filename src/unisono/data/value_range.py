"""Arrays of the user's own as samples: the range is decided by type and content, and refused where it is unclear."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unisono.core.errors import UserError

ROUNDING = 1e-3
"""Floats may leave [0, 1] by this much, as resizing makes them; they are cut there."""


def as_samples(values: Tensor | NDArray[Any], input_shape: tuple[int, ...], bits: int | None = None) -> Tensor:
    """Return images as uint8 or as floats in [0, 1], and series as floats; anything else is refused.

    Args:
        values: images of shape (num, channels, height, width) or (num, height, width, channels), of type uint8, uint16 or
            float; series of shape (num, channels, length).
        input_shape: of one sample of the network.
        bits: that uint16 images use, ``data.bits`` of the run; None: all 16.
    """
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim == len(input_shape) + 1 == 4 and array.shape[1:] != input_shape:
        moved = np.moveaxis(array, 3, 1)
        array = moved if moved.shape[1:] == input_shape else array
    if array.shape[1:] != input_shape:
        raise UserError(f"samples must have shape (any, {', '.join(map(str, input_shape))}), got {tuple(array.shape)}.")
    if array.dtype.kind not in "uifb":
        raise UserError(f"samples must be numbers, got {array.dtype}.")
    _check_finite(array)
    if len(input_shape) != 3:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    if array.dtype != np.uint8:
        array = as_shares(array, bits)
    return torch.from_numpy(np.ascontiguousarray(array))


def as_shares(images: NDArray[Any], bits: int | None = None) -> NDArray[np.float32]:
    """Return images as floats in [0, 1]; raise a UserError where their range is unclear.

    Args:
        images: of any type.
        bits: that uint16 images use; None: all 16, and images of 8 bits are refused.
    """
    _check_finite(images)
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    found = f"got {images.dtype} from {low:g} to {high:g}"
    if images.dtype == np.uint16:
        if bits is not None:
            return widened(images, bits).astype(np.float32) / np.float32(65535)
        if 0 < high <= 255:
            raise UserError(f"uint16 images are read as 0 to 65535, {found}: if they have 8 bits, pass images.astype('uint8').")
        return images.astype(np.float32) / np.float32(65535)
    if images.dtype.kind != "f":
        kind = "float32" if high <= 1 else "uint8"  # masks of 0 and 1 would be black as uint8
        remedy = f"pass images.astype({kind!r})" if low >= 0 and high <= 255 else "convert them to one of these"
        raise UserError(f"images must be uint8, uint16 or floats in [0, 1], {found}: {remedy}.")
    if low < -ROUNDING or high > 1 + ROUNDING:
        looks_like_bytes = low >= 0 and 1 < high <= 255
        remedy = "divide them by 255" if looks_like_bytes else "undo their normalisation, networks have their own"
        raise UserError(f"images of floats must lie in [0, 1], {found}: {remedy}.")
    return images.astype(np.float32).clip(0, 1)


def widened(images: NDArray[np.uint16], bits: int) -> NDArray[np.uint16]:
    """Return 16-bit images that use fewer bits on the whole range; raise a UserError where a value is beyond them.

    Args:
        images: of any shape.
        bits: that they use; their largest number becomes 65535.
    """
    white, high = 2**bits - 1, int(images.max()) if images.size else 0
    if high > white:
        raise UserError(f"values reach {high}, and data.bits = {bits} ends at {white}: raise it, or leave it out for 16.")
    whole: NDArray[np.uint16] = ((images.astype(np.uint32) * 65535 + white // 2) // white).astype(np.uint16)
    return whole


def _check_finite(array: NDArray[Any]) -> None:
    bad = int((~np.isfinite(array)).sum()) if array.dtype.kind == "f" else 0
    if bad:
        raise UserError(f"samples must be finite, got {bad} values that are NaN or infinite; replace them first.")
