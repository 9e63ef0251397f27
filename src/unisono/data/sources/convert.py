"""Whole batches of images to another size, number of channels or depth."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.core.client_data import LARGEST, as_float
from unisono.core.errors import UserError

CHUNK = 1024
LUMA = (0.299, 0.587, 0.114)
"""ITU-R 601-2, the weights that Pillow turns RGB grey with."""


def resize(images: Tensor, size: int | tuple[int, int], squeeze: bool = False) -> Tensor:
    """Return the central parts of the images with the sides' ratio of the result, resized with antialiasing.

    Args:
        images: uint8, uint16 or floats in [0, 1], shape (num, channels, height, width).
        size: height and width of the result; one number for squares.
        squeeze: resize the whole images, not their central parts.
    """
    rows, columns = (size, size) if isinstance(size, int) else size
    height, width = images.shape[-2:]
    if (height, width) == (rows, columns):
        return images
    kept = images
    if not squeeze:
        tall, wide = min(height, round(width * rows / columns)), min(width, round(height * columns / rows))
        top, left = (height - tall) // 2, (width - wide) // 2
        kept = images[..., top : top + tall, left : left + wide]
    resized = torch.empty(*images.shape[:2], rows, columns, dtype=images.dtype)
    for source, target in zip(kept.split(CHUNK), resized.split(CHUNK), strict=True):
        if len(source):
            scaled = F.interpolate(source.float(), size=(rows, columns), mode="bicubic", antialias=True, align_corners=False)
            largest = LARGEST.get(images.dtype, 1)
            target.copy_((scaled if images.is_floating_point() else scaled.round_()).clamp_(0, largest))
    return resized


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Return the images in grey (1) or RGB (3); other numbers of channels must be right already.

    Args:
        images: uint8, uint16 or floats in [0, 1], shape (num, any, height, width).
        channels: of the result.
    """
    own = images.shape[1]
    if own == channels:
        return images
    if {own, channels} != {1, 3}:
        number = "1 channel" if own == 1 else f"{own} channels"
        raise UserError(f"Images of {number} do not become {channels}: convert them, or train with data.channels = {own}.")
    if channels == 3:
        return images.repeat(1, 3, 1, 1)
    grey = torch.empty(len(images), 1, *images.shape[2:], dtype=images.dtype)
    weights = torch.tensor(LUMA).reshape(1, 3, 1, 1)
    for source, target in zip(images.split(CHUNK), grey.split(CHUNK), strict=True):
        mixed = (source.float() * weights).sum(1, keepdim=True)
        target.copy_(mixed if images.is_floating_point() else mixed.round_())
    return grey


def at_depth(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the images as uint8, uint16 or floats; 16 bits become 8 by their upper byte.

    Args:
        images: of another of these types.
        dtype: of the result.
    """
    if images.dtype == dtype:
        return images
    if dtype.is_floating_point:
        return as_float(images)
    if images.dtype == torch.uint16 and dtype == torch.uint8:
        return images.int().div_(256, rounding_mode="floor").to(torch.uint8)
    return (as_float(images) * LARGEST[dtype]).round_().to(dtype)
