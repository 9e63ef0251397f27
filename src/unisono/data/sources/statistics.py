"""Mean and standard deviation per channel, in little memory."""

from __future__ import annotations

import torch
from torch import Tensor

STD_FLOOR = 1e-6
CHUNK_VALUES = 1 << 22

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def channel_statistics(samples: Tensor) -> Statistics:
    """Return mean and standard deviation per channel; images on the scale [0, 1], no deviation below ``STD_FLOOR``.

    Args:
        samples: uint8 of shape (num, channels, height, width) or floats of shape (num, channels, length).
    """
    chunks = samples.split(max(1, CHUNK_VALUES // samples[0].numel()))
    mean, variance = _of_bytes(chunks) if samples.dtype == torch.uint8 else _of_floats(chunks)
    return tuple(mean.tolist()), tuple(variance.sqrt().clamp(min=STD_FLOOR).tolist())


def _of_bytes(chunks: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Return mean and deviation from the counts of the 256 values, which is exact."""
    counts = torch.zeros(chunks[0].shape[1], 256, dtype=torch.float64)
    for chunk in chunks:
        for channel in range(len(counts)):
            counts[channel] += torch.bincount(chunk[:, channel].reshape(-1), minlength=256)
    shares = counts / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ values
    return mean, (shares * (values - mean[:, None]).square()).sum(1)


def _of_floats(chunks: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Return mean and deviation in two passes, as the sum of squares of a series far from zero would cancel."""
    num_values = sum(chunk.numel() for chunk in chunks) / chunks[0].shape[1]
    mean = torch.zeros(chunks[0].shape[1], dtype=torch.float64)
    for chunk in chunks:
        mean += chunk.double().sum((0, 2)) / num_values
    variance = torch.zeros_like(mean)
    for chunk in chunks:
        variance += (chunk.double() - mean[:, None]).square_().sum((0, 2)) / num_values
    return mean, variance
