from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unisono.clustering import private
from unisono.clustering.private import (
    Coreset,
    Noise,
    clip_to_ball,
    discrete_laplace,
    private_centroids,
    private_coreset,
    random_projection,
    weighted_kmeans,
)
from unisono.core.noise import SeededNoise

SILENT = Noise(count_epsilon=1e6, sum_deviation=0.0)
OFFSET = 1000
"""Added to every count in place of noise, so that every node is split and every leaf is kept."""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(seed: int = 0) -> SeededNoise:
    return SeededNoise(seeded(seed))


def whole_tree(points: Tensor, depth: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """Exact counts and sums of all 2^depth leaves: what is left of the mechanism without noise, at the same noisy counts."""
    monkeypatch.setattr(private, "discrete_laplace", lambda epsilon, number, source: torch.full((number,), OFFSET))
    directions = torch.randn(depth, points.shape[1], generator=seeded(9), dtype=torch.float64)
    coreset = private_coreset(points, directions, SILENT, noise())
    return coreset.weights - OFFSET, coreset.points * coreset.weights[:, None]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_one_point_more_moves_one_count_by_one_and_the_sums_by_its_clipped_norm(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sensitivities that the noise is calibrated for: L1 of the counts of a level 1, L2 of all sums together at most 1."""
    points = 3 * torch.randn(40, 5, generator=seeded(1), dtype=torch.float64)
    counts, sums = whole_tree(points, depth, monkeypatch)
    assert len(counts) == 2**depth
    assert counts.sum() == len(points)
    for left_out in range(len(points)):
        fewer = torch.cat((points[:left_out], points[left_out + 1 :]))
        other_counts, other_sums = whole_tree(fewer, depth, monkeypatch)
        assert (counts - other_counts).abs().sum() == 1
        change = float((sums - other_sums).norm())
        assert change == pytest.approx(min(1.0, float(points[left_out].norm())), abs=1e-9)


def test_sums_get_gaussian_noise_of_the_given_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without points sends nothing but noise; OFFSET / noise is large enough that no mean leaves the unit ball."""
    from scipy.stats import kstest

    monkeypatch.setattr(private, "discrete_laplace", lambda epsilon, number, source: torch.full((number,), OFFSET))
    coreset = private_coreset(torch.empty(0, 200), torch.randn(5, 200, generator=seeded()), Noise(1.0, 2.5), noise(3))
    found = (coreset.points * OFFSET).flatten().numpy()
    assert len(found) == 32 * 200
    assert kstest(found / 2.5, "norm").pvalue > 0.01
    assert float(np.std(found)) == pytest.approx(2.5, rel=0.05)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0])
def test_counts_get_discrete_laplace_noise(epsilon: float) -> None:
    """P(x) = tanh(epsilon / 2) exp(-epsilon |x|), and so the variance 2 e^-epsilon / (1 - e^-epsilon)^2."""
    from scipy.stats import chisquare

    draws = discrete_laplace(epsilon, 40_000, noise(5)).numpy()
    reach = max(1, round(2 / epsilon))
    inner = np.arange(-reach, reach + 1)
    chances = math.tanh(epsilon / 2) * np.exp(-epsilon * np.abs(inner))
    seen = np.array([(draws == value).sum() for value in inner])
    tails = [(draws < -reach).sum(), (draws > reach).sum()]
    expected = np.append(chances, [(1 - chances.sum()) / 2] * 2) * len(draws)
    assert chisquare(np.append(seen, tails), expected).pvalue > 0.01
    decay = math.exp(-epsilon)
    assert float(np.var(draws)) == pytest.approx(2 * decay / (1 - decay) ** 2, rel=0.05)


def test_counts_of_a_client_without_points_are_noise_alone() -> None:
    coreset = private_coreset(torch.empty(0, 4), torch.randn(1, 4, generator=seeded()), Noise(0.01, 1.0), noise(2), min_count=1)
    assert len(coreset.weights) <= 2
    assert bool((coreset.weights >= 1).all())


def test_without_noise_every_point_is_counted_once_and_leaves_hold_their_means() -> None:
    points = F.normalize(torch.randn(64, 3, generator=seeded(4), dtype=torch.float64), dim=1)
    directions = torch.randn(3, 3, generator=seeded(6), dtype=torch.float64)
    coreset = private_coreset(points, directions, SILENT, noise(), min_count=1)
    assert coreset.weights.sum() == 64
    codes = ((points @ directions.T > 0).long() * torch.tensor([4, 2, 1])).sum(dim=1)
    for leaf, weight in zip(coreset.points, coreset.weights, strict=True):
        assert (
            any(
                int((codes == code).sum()) == int(weight) and torch.allclose(points[codes == code].mean(dim=0), leaf)
                for code in codes.unique()
            )
            or int(weight) < 2
        )  # a node of one point is not split further


def test_small_leaves_are_left_out_and_nothing_left_means_nothing_sent() -> None:
    points = torch.ones(3, 4)
    assert len(private_centroids(points, 2, 2, SILENT, seeded(), noise(), min_count=4)) == 0
    assert private_centroids(points, 2, 2, SILENT, seeded(), noise(), min_count=3).shape == (1, 4)


def test_same_generators_same_centroids_and_other_noise_other_centroids() -> None:
    points = F.normalize(torch.randn(200, 6, generator=seeded(1)), dim=1)
    first, again, other = (private_centroids(points, 4, 3, Noise(1.0, 1.0), seeded(1), noise(seed)) for seed in (2, 2, 3))
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)
    assert torch.allclose(first.norm(dim=1), torch.ones(len(first)))
    assert first.dtype == torch.float32


def test_many_points_and_little_noise_give_the_directions_of_the_clusters() -> None:
    centres = F.normalize(torch.tensor([[1.0, 1, 0, 0], [-1, 0, 1, 0], [0, -1, -1, 1]]), dim=1)
    points = F.normalize(centres.repeat(1000, 1) + 0.05 * torch.randn(3000, 4, generator=seeded(1)), dim=1)
    found = private_centroids(points, 3, 4, Noise(0.5, 3.0), seeded(11), noise(2), min_count=50)
    assert float((centres @ found.T).amax(dim=1).min()) > 0.95


def test_one_cluster_is_the_weighted_mean() -> None:
    points = torch.randn(6, 3, generator=seeded(1), dtype=torch.float64)
    weights = torch.tensor([1.0, 2, 3, 4, 5, 6], dtype=torch.float64)
    found = weighted_kmeans(Coreset(points, weights), 1, seeded())
    assert torch.allclose(found[0], (points * weights[:, None]).sum(dim=0) / 21)


def test_a_weight_is_as_many_points() -> None:
    points = torch.tensor([[0.0, 0], [1, 0], [10, 0], [11, 0]], dtype=torch.float64)
    weighted = weighted_kmeans(Coreset(points, torch.tensor([3.0, 1, 1, 3], dtype=torch.float64)), 2, seeded(1))
    repeated = points[[0, 0, 0, 1, 2, 3, 3, 3]]
    plain = weighted_kmeans(Coreset(repeated, torch.ones(8, dtype=torch.float64)), 2, seeded(1))
    assert sorted(weighted[:, 0].tolist()) == sorted(plain[:, 0].tolist()) == pytest.approx([0.25, 10.75])


def test_as_many_clusters_as_points_even_where_points_coincide() -> None:
    points = torch.zeros(3, 2, dtype=torch.float64)
    assert weighted_kmeans(Coreset(points, torch.ones(3, dtype=torch.float64)), 3, seeded()).shape == (3, 2)


def test_projection_has_orthogonal_rows_and_keeps_lengths_on_average() -> None:
    projection = random_projection(64, 16, seeded())
    assert torch.allclose(projection @ projection.T, 4 * torch.eye(16, dtype=torch.float64), atol=1e-9)
    points = F.normalize(torch.randn(4000, 64, generator=seeded(1), dtype=torch.float64), dim=1)
    assert float((points @ projection.T).square().sum(dim=1).mean()) == pytest.approx(1, rel=0.02)


@settings(max_examples=50)
@given(st.integers(1, 20), st.integers(1, 8), st.floats(0, 1e6))
def test_clipped_points_lie_in_the_unit_ball_and_keep_their_direction(number: int, dim: int, scale: float) -> None:
    points = scale * torch.randn(number, dim, generator=seeded(number), dtype=torch.float64)
    clipped = clip_to_ball(points)
    assert float(clipped.norm(dim=1).max()) <= 1 + 1e-12
    inside = points.norm(dim=1) <= 1
    assert torch.equal(clipped[inside], points[inside])
    assert torch.allclose(F.normalize(clipped, dim=1), F.normalize(points, dim=1), atol=1e-6)
