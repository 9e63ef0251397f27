from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unisono.clustering.kmeans import KMeansClusters, kmeans, nearest_members, seed_points


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(num_blobs: int, size: int, dim: int = 5) -> tuple[Tensor, Tensor]:
    """Points in well separated balls, and their balls."""
    centres = torch.randn(num_blobs, dim, generator=rng(1)) * 100
    owner = torch.arange(num_blobs).repeat_interleave(size)
    return centres[owner] + torch.randn(len(owner), dim, generator=rng(2)), owner


def inertia(points: Tensor, clusters: KMeansClusters) -> float:
    return float((points - clusters.centroids[clusters.assignment]).square().sum())


def test_separated_balls_are_found() -> None:
    points, owner = blobs(6, 20)
    clusters = kmeans(points, 6, rng())
    pairs = set(zip(owner.tolist(), clusters.assignment.tolist(), strict=True))
    assert len(pairs) == 6
    for ball in range(6):
        cluster = int(clusters.assignment[owner == ball][0])
        torch.testing.assert_close(clusters.centroids[cluster], points[owner == ball].mean(dim=0), rtol=1e-4, atol=1e-3)


@given(seed=st.integers(0, 1000), num_points=st.integers(1, 40), num_clusters=st.integers(1, 8))
@settings(max_examples=40)
def test_is_a_fixed_point_of_lloyd(seed: int, num_points: int, num_clusters: int) -> None:
    points = torch.randn(num_points, 3, generator=rng(seed))
    clusters = kmeans(points, min(num_clusters, num_points), rng(seed))
    distances = torch.cdist(points.double(), clusters.centroids.double()).square()
    own = distances.gather(1, clusters.assignment[:, None]).flatten()
    assert bool((own <= distances.min(dim=1).values + 1e-5).all())
    for cluster in clusters.assignment.unique():
        torch.testing.assert_close(
            clusters.centroids[cluster], points[clusters.assignment == cluster].mean(dim=0), rtol=1e-4, atol=1e-5
        )


def test_is_as_good_as_scikit_learn() -> None:
    from sklearn.cluster import KMeans

    points = torch.rand(400, 20, generator=rng(3))
    ours = min(inertia(points, kmeans(points, 12, rng(seed))) for seed in range(5))
    theirs = KMeans(12, n_init=5, random_state=0).fit(points.numpy()).inertia_
    assert ours < 1.02 * theirs


def test_far_from_the_origin_nothing_is_lost() -> None:
    """Without centring, squares of 1e4 would round away distances below 10."""
    points, owner = blobs(6, 20)
    clusters = kmeans(points / 20 + 1e4, 6, rng())
    assert len(set(zip(owner.tolist(), clusters.assignment.tolist(), strict=True))) == 6


def test_same_generator_same_bits() -> None:
    points = torch.randn(50, 4, generator=rng(5))
    first, second = kmeans(points, 7, rng(1)), kmeans(points, 7, rng(1))
    assert torch.equal(first.centroids, second.centroids)
    assert torch.equal(first.assignment, second.assignment)


def test_equal_points_leave_clusters_empty() -> None:
    points = torch.ones(5, 3)
    clusters = kmeans(points, 3, rng())
    assert len(clusters.assignment.unique()) == 1
    assert bool(torch.isfinite(clusters.centroids).all())
    assert len(nearest_members(points, clusters)) == 1


@pytest.mark.parametrize("num_clusters", [0, 6])
def test_wrong_number_of_clusters(num_clusters: int) -> None:
    with pytest.raises(ValueError, match="from 1 to the number of points, 5"):
        kmeans(torch.rand(5, 2), num_clusters, rng())


def test_seeds_are_different_points() -> None:
    points = torch.randn(30, 3, generator=rng(7))
    assert len(seed_points(points, 30, rng()).unique()) == 30


def test_second_seed_is_drawn_by_squared_distance() -> None:
    """From 0 the points 1 and 3 are drawn with chances 1/10 and 9/10, from 1 (distances 1, 2) 0 and 3 with 1/5 and 4/5."""
    points = torch.tensor([[0.0], [1.0], [3.0]])
    pairs = [tuple(seed_points(points, 2, rng(seed)).tolist()) for seed in range(3000)]
    from_zero = [second for first, second in pairs if first == 0]
    from_one = [second for first, second in pairs if first == 1]
    assert len(from_zero) / len(pairs) == pytest.approx(1 / 3, abs=0.05)
    assert from_zero.count(2) / len(from_zero) == pytest.approx(0.9, abs=0.04)
    assert from_one.count(2) / len(from_one) == pytest.approx(0.8, abs=0.05)


@given(seed=st.integers(0, 1000), num_points=st.integers(1, 30))
@settings(max_examples=30)
def test_nearest_members_naively(seed: int, num_points: int) -> None:
    points = torch.randn(num_points, 2, generator=rng(seed))
    clusters = kmeans(points, min(4, num_points), rng(seed))
    expected = []
    for cluster in clusters.assignment.unique():
        members = (clusters.assignment == cluster).nonzero().flatten()
        distances = (points[members] - clusters.centroids[cluster]).square().sum(dim=1)
        expected.append(int(members[distances.argmin()]))
    assert nearest_members(points, clusters).tolist() == sorted(expected)
