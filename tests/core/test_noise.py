"""Noise of the right distribution, which no seed repeats."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from tests.attacks import attack
from unisono.core.noise import SeededNoise, SystemNoise


def test_system_noise_has_its_distribution() -> None:
    noise = SystemNoise()
    assert stats.kstest(noise.uniform(200_000).numpy(), "uniform").pvalue > 1e-6
    assert stats.kstest(noise.normal(200_000).numpy(), "norm").pvalue > 1e-6
    assert noise.normal(2, 3).shape == (2, 3)
    assert noise.uniform(0).shape == (0,)
    assert noise.normal(2_000_000).isfinite().all()


@attack("A21", "Searches the 32 bits of a generator for the noise of a client", "no generator is behind it")
def test_system_noise_is_double_and_never_the_same() -> None:
    """Not even in the last 32 bits: no torch generator is behind it."""
    torch.manual_seed(0)
    np.random.seed(0)
    first = SystemNoise().normal(1000)
    torch.manual_seed(0)
    np.random.seed(0)
    assert not bool((SystemNoise().normal(1000) == first).any())
    assert first.dtype == torch.float64
    assert not bool((first == first.float().double()).all())


def test_seeded_noise_is_the_generators() -> None:
    expected = torch.randn(3, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    assert torch.equal(SeededNoise(torch.Generator().manual_seed(5)).normal(3, 2), expected)
