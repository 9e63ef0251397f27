"""Whole batches of uint8 images to another size or number of channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 1024
LUMA = (0.299, 0.587, 0.114)
"""ITU-R 601-2, the weights that Pillow turns RGB grey with."""


def resize(images: Tensor, size: int, squeeze: bool = False) -> Tensor:
    """Return the central squares of the images, resized with antialiasing to (num, channels, size, size).

    Args:
        images: uint8 of shape (num, channels, height, width).
        size: edge of the result.
        squeeze: resize the whole images, not their central squares.
    """
    height, width = images.shape[-2:]
    if (height, width) == (size, size):
        return images
    square = images
    if not squeeze:
        edge = min(height, width)
        top, left = (height - edge) // 2, (width - edge) // 2
        square = images[..., top : top + edge, left : left + edge]
    resized = torch.empty(*images.shape[:2], size, size, dtype=torch.uint8)
    for source, target in zip(square.split(CHUNK), resized.split(CHUNK), strict=True):
        if len(source):
            scaled = F.interpolate(source.float(), size=(size, size), mode="bicubic", antialias=True, align_corners=False)
            target.copy_(scaled.round_().clamp_(0, 255))
    return resized


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Return the images in grey (1) or RGB (3).

    Args:
        images: uint8 of shape (num, 1 or 3, height, width).
        channels: 1 or 3.
    """
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.repeat(1, 3, 1, 1)
    grey = torch.empty(len(images), 1, *images.shape[2:], dtype=torch.uint8)
    weights = torch.tensor(LUMA).reshape(1, 3, 1, 1)
    for source, target in zip(images.split(CHUNK), grey.split(CHUNK), strict=True):
        target.copy_((source.float() * weights).sum(1, keepdim=True).round_())
    return grey
