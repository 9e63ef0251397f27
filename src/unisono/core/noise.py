"""Sources of noise for privacy: one that a seed repeats, for simulations, and one that nobody can repeat.

A torch generator on the CPU keeps 32 bits of its seed, so noise that must stay secret never comes from one.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

import torch
from torch import Tensor

CHUNK = 2**20
"""Numbers drawn at a time."""


class NoiseSource(Protocol):
    """Draws of double precision, and a generator for choices that need not stay secret."""

    generator: torch.Generator

    def uniform(self, *shape: int) -> Tensor:
        """Return numbers uniform in [0, 1), float64."""

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers, float64."""


class SeededNoise:
    """Noise that whoever knows the seed can draw again.

    Args:
        generator: draws it.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def uniform(self, *shape: int) -> Tensor:
        """Return numbers uniform in [0, 1), float64."""
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers, float64."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)


class SystemNoise:
    """Noise from the operating system's random bytes: 53 bits for a uniform number, and its inverse normal distribution."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "big"))

    def uniform(self, *shape: int) -> Tensor:
        """Return numbers uniform in [0, 1), float64."""
        return (_bits(math.prod(shape)) * 2.0**-53).reshape(shape)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers, float64; the largest are about 8.3."""
        found = torch.empty(math.prod(shape), dtype=torch.float64)
        for part in found.split(CHUNK):
            # Halfway between two multiples of 2^-53 the distribution function is neither 0 nor 1.
            part.copy_(torch.special.ndtri((_bits(len(part)) + 0.5) * 2.0**-53))
        return found.reshape(shape)


def _bits(number: int) -> Tensor:
    """Return whole numbers below 2^53, as float64."""
    data = bytearray(os.urandom(8 * number))
    if not data:
        return torch.empty(0, dtype=torch.float64)
    return (torch.frombuffer(data, dtype=torch.int64) & (2**53 - 1)).double()
