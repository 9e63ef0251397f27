import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.evaluation import alignment
from unisono.evaluation.alignment import align, stability, uniformity


def cosine(u: torch.Tensor, v: torch.Tensor) -> float:
    return float(u.double() @ v.double() / (u.double().norm() * v.double().norm()))


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), num_samples=st.integers(1, 12), tau=st.sampled_from([0.1, 0.2, 1.0]))
def test_align_and_uniformity_are_those_of_equation_5(seed, num_samples, tau):
    generator = torch.Generator().manual_seed(seed)
    z1, z2 = (torch.randn(num_samples, 6, generator=generator) for _ in range(2))
    expected_align = sum(cosine(u, v) for u, v in zip(z1, z2, strict=True)) / num_samples
    logs = [math.log(sum(math.exp(cosine(x, y) / tau) for y in z1) / num_samples) for x in z1]
    expected_uniformity = -sum(logs) / num_samples
    assert align(z1, z2) == pytest.approx(expected_align, abs=1e-5)
    assert uniformity(z1, tau) == pytest.approx(expected_uniformity, abs=1e-5)


def test_collapse_aligns_perfectly_and_is_as_far_from_uniform_as_can_be():
    z = torch.ones(10, 4)
    assert align(z, 2 * z) == pytest.approx(1.0)
    assert uniformity(z, tau=0.2) == pytest.approx(-5.0, rel=1e-6)


def test_orthogonal_samples_in_closed_form():
    """Every x sees itself once and n - 1 samples at a right angle."""
    n, tau = 8, 0.2
    assert uniformity(torch.eye(n), tau) == pytest.approx(-math.log((math.exp(1 / tau) + n - 1) / n), rel=1e-5)


def test_higher_is_better():
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(200, 8, generator=generator)
    crowded = spread + 4
    assert uniformity(spread) > uniformity(crowded)
    assert align(spread, spread + 0.1) > align(spread, spread + torch.randn(200, 8, generator=generator))


def test_chunks_do_not_matter(monkeypatch):
    z = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    whole = uniformity(z)
    monkeypatch.setattr(alignment, "CHUNK_ENTRIES", 120)
    assert uniformity(z) == pytest.approx(whole, abs=1e-6)


def test_stability_ignores_names_and_falls_with_every_move():
    previous = torch.arange(60) % 3
    assert stability(previous, (previous + 1) % 3) == pytest.approx(1.0)
    moved = previous.clone()
    moved[:10] = 0
    assert 0 < stability(previous, moved) < 1
