"""Mean and standard deviation per channel, in little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from unisono.core.client_data import LARGEST
from unisono.core.mapped import some_chunks

STD_FLOOR = 1e-6
CHUNK_VALUES = 1 << 22

MOST_ROWS = 200_000
"""Samples that mean and deviation are taken of."""
Chunks = Callable[[], Iterator[Tensor]]

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def channel_statistics(samples: Tensor) -> Statistics:
    """Return mean and standard deviation per channel; images on the scale [0, 1], no deviation below ``STD_FLOOR``.

    More than ``MOST_ROWS`` samples are represented by evenly spaced ones.

    Args:
        samples: uint8, uint16 or floats of shape (num, channels, height, width), or floats of shape (num, channels, length).
    """
    rows = max(1, CHUNK_VALUES // samples[0].numel())
    few = samples if len(samples) <= MOST_ROWS else samples[:: -(-len(samples) // MOST_ROWS)]
    moments = _of_bytes if samples.dtype == torch.uint8 else _of_floats
    mean, variance = moments(lambda: some_chunks(few, rows), samples.shape[1])
    return tuple(mean.tolist()), tuple(variance.sqrt().clamp(min=STD_FLOOR).tolist())


def _of_bytes(chunks: Chunks, channels: int) -> tuple[Tensor, Tensor]:
    """Return mean and deviation from the counts of the 256 values, which is exact."""
    counts = torch.zeros(channels, 256, dtype=torch.float64)
    for chunk in chunks():
        for channel in range(len(counts)):
            counts[channel] += torch.bincount(chunk[:, channel].reshape(-1), minlength=256)
    shares = counts / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ values
    return mean, (shares * (values - mean[:, None]).square()).sum(1)


def _of_floats(chunks: Chunks, channels: int) -> tuple[Tensor, Tensor]:
    """Return mean and deviation in two passes, as the sum of squares of a series far from zero would cancel."""
    num_values = sum(chunk.numel() for chunk in chunks()) / channels
    mean = torch.zeros(channels, dtype=torch.float64)
    for chunk in chunks():
        mean += _double(chunk).sum((0, 2)) / num_values
    variance = torch.zeros_like(mean)
    for chunk in chunks():
        variance += (_double(chunk) - mean[:, None]).square_().sum((0, 2)) / num_values
    return mean, variance


def _double(chunk: Tensor) -> Tensor:
    """Return values of shape (num, channels, any), images in [0, 1]."""
    values = chunk.flatten(2).double()
    return values if chunk.is_floating_point() else values.div_(LARGEST[chunk.dtype])
