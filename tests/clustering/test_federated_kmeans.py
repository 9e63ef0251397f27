from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unisono.clustering.federated_kmeans import (
    cluster_totals,
    merge_clusters,
    next_centroids,
    own_clusters,
)


@given(st.integers(0, 1000), st.integers(1, 30), st.integers(1, 4), st.integers(1, 3))
def test_totals_against_a_naive_reference(seed: int, num_points: int, num_clusters: int, dim: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points, centroids = torch.randn(num_points, dim, generator=generator), torch.randn(num_clusters, dim, generator=generator)
    totals = cluster_totals(points, centroids)
    sums, counts, squared = torch.zeros(num_clusters, dim), torch.zeros(num_clusters), 0.0
    for point in points:
        distances = (centroids - point).square().sum(dim=1)
        nearest = int(distances.argmin())
        sums[nearest] += point
        counts[nearest] += 1
        squared += float(distances[nearest])
    torch.testing.assert_close(totals.sums, sums, rtol=1e-4, atol=1e-5)
    assert torch.equal(totals.counts, counts)
    assert abs(totals.squared_distance - squared) < 1e-3 * (1 + squared)


@given(st.integers(0, 1000), st.integers(1, 5))
def test_many_owners_take_the_step_of_one(seed: int, num_owners: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points, centroids = torch.randn(40, 2, generator=generator), torch.randn(3, 2, generator=generator)
    whole = cluster_totals(points, centroids)
    parts = [cluster_totals(part, centroids) for part in points.chunk(num_owners)]
    sums, counts = sum((part.sums for part in parts), torch.zeros(3, 2)), sum((part.counts for part in parts), torch.zeros(3))
    together = next_centroids(sums, counts, centroids)
    torch.testing.assert_close(together, next_centroids(whole.sums, whole.counts, centroids), rtol=1e-5, atol=1e-6)


def test_steps_lower_the_distance_until_they_stand_still() -> None:
    points = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    centroids = points[:4]
    distances = []
    for _ in range(50):
        totals = cluster_totals(points, centroids)
        distances.append(totals.squared_distance)
        centroids = next_centroids(totals.sums, totals.counts, centroids)
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] == distances[-2] < distances[0]


def test_an_empty_cluster_keeps_its_place() -> None:
    previous = torch.tensor([[1.0, 1], [5, 5]])
    moved = next_centroids(torch.tensor([[4.0, 0], [0, 0]]), torch.tensor([2.0, 0]), previous)
    assert torch.equal(moved, torch.tensor([[2.0, 0], [5, 5]]))


def test_a_small_cluster_is_counted_with_the_nearest_larger_one() -> None:
    points = torch.tensor([[0.0, 0], [0, 1], [9, 0], [20, 0], [20, 1], [20, 2]])
    centroids = torch.tensor([[0.0, 0], [9, 0], [20, 0]])
    shown = cluster_totals(points, centroids, 2)
    assert shown is not None
    assert torch.equal(shown.counts, torch.tensor([3.0, 0, 3]))
    assert torch.equal(shown.sums, torch.tensor([[9.0, 1], [0, 0], [60, 3]]))
    assert shown.squared_distance == pytest.approx(1 + 81 + 1 + 4)


@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 12), st.integers(0, 2**16))
def test_no_cluster_is_small_and_no_point_is_lost(num_points: int, num_clusters: int, min_size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(num_points, 3, generator=generator)
    shown = cluster_totals(points, torch.randn(num_clusters, 3, generator=generator), min_size)
    if shown is None:
        assert num_points < min_size
        return
    assert shown.counts.sum() == num_points
    torch.testing.assert_close(shown.sums.sum(dim=0), points.sum(dim=0))
    assert all(count == 0 or count >= min_size for count in shown.counts.tolist())


def blobs(seed: int, num_blobs: int, num_points: int) -> torch.Tensor:
    """Points of well separated round clusters, those of a cluster side by side."""
    generator = torch.Generator().manual_seed(seed)
    centres = 100 * torch.eye(num_blobs, 6)
    return centres.repeat_interleave(num_points, dim=0) + torch.randn(num_blobs * num_points, 6, generator=generator)


def test_own_clusters_are_those_with_enough_members() -> None:
    points = torch.cat([blobs(0, 2, 10), torch.full((1, 6), -500.0)])
    found = own_clusters(points, 3, 2, torch.Generator().manual_seed(0))
    assert found is not None
    assert sorted(found.counts.tolist()) == [10, 10], "the cluster of one point is not shown"
    shown = points[:20].view(2, 10, 6)
    expected = (shown - shown.mean(dim=1, keepdim=True)).square().sum()
    assert found.squared_distance == pytest.approx(float(expected), rel=1e-4), "nor is its distance"
    assert own_clusters(points[:1], 3, 2, torch.Generator()) is None


def test_merged_clusters_are_means_over_points() -> None:
    """Owners of 10 and 30 points of the same three clusters: the merged centroids are the means of all 40."""
    first, second = blobs(1, 3, 10), blobs(2, 3, 30)
    found = [own_clusters(points, 3, 2, torch.Generator().manual_seed(0)) for points in (first, second)]
    totals = [totals for totals in found if totals is not None]
    centroids = torch.cat([part.sums / part.counts[:, None] for part in totals])
    counts = torch.cat([part.counts for part in totals])
    merged = merge_clusters(centroids, counts, 3, torch.Generator().manual_seed(0))
    expected = torch.cat([first.view(3, 10, 6), second.view(3, 30, 6)], dim=1).mean(dim=1)
    order = torch.cdist(expected, merged).argmin(dim=1)
    torch.testing.assert_close(merged[order], expected, rtol=1e-4, atol=1e-3)
    assert torch.equal(merge_clusters(centroids[:2], counts[:2], 3, torch.Generator()), centroids[:2])
