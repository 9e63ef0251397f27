from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.clustering.equal_size import (
    Clusters,
    equal_size_assignment,
    equal_size_clustering,
    mean_directions,
    mixing,
    spread_points,
)
from unisono.clustering.sinkhorn import sinkhorn


def unit_points(num_points: int, dim: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(num_points, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


@settings(max_examples=60)
@given(
    num_clusters=st.integers(1, 40),
    factor=st.floats(1, 8),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 0.01, 1.0]),
)
def test_sizes_differ_by_at_most_one(num_clusters: int, factor: float, seed: int, spread: float) -> None:
    """Also when all points are the same, or nearly so."""
    num_points = int(num_clusters * factor)
    points = F.normalize(torch.ones(1, 8) + spread * unit_points(num_points, 8, seed), dim=1)
    clusters = equal_size_clustering(points, num_clusters, torch.Generator().manual_seed(seed))
    sizes = clusters.assignment.bincount(minlength=num_clusters)
    assert int(sizes.max() - sizes.min()) <= 1
    assert int(sizes.sum()) == num_points
    if num_points >= 2 * num_clusters:
        assert int(sizes.min()) >= 2


@pytest.mark.parametrize(("num_points", "num_clusters"), [(4096, 16), (4096, 8), (1000, 7), (16, 16), (17, 16), (1, 1)])
def test_sizes_of_large_and_extreme_cases(num_points: int, num_clusters: int) -> None:
    points = unit_points(num_points, 16, 3)
    clusters = equal_size_clustering(points, num_clusters, torch.Generator().manual_seed(0), max_iterations=3)
    sizes = clusters.assignment.bincount(minlength=num_clusters)
    floor, num_larger = divmod(num_points, num_clusters)
    assert sorted(sizes.tolist()) == [floor] * (num_clusters - num_larger) + [floor + 1] * num_larger


def test_largest_entries_of_sinkhorn_break_the_promise() -> None:
    """Why the assignment is capacity-constrained: equal mass is not equal size."""
    centre = F.normalize(torch.randn(10, 64, generator=torch.Generator().manual_seed(0)), dim=1)
    points = F.normalize(centre[torch.arange(128) % 10] + 0.05 * unit_points(128, 64, 1), dim=1)
    plan = sinkhorn(points @ spread_points(points, 16, torch.Generator().manual_seed(0)).T)
    assert int(plan.argmax(dim=1).bincount(minlength=16).min()) < 8
    assert equal_size_assignment(plan).bincount(minlength=16).tolist() == [8] * 16


def test_assignment_takes_the_best_pairs_first() -> None:
    affinity = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.6], [0.5, 0.4]])
    assert equal_size_assignment(affinity).tolist() == [0, 0, 1, 1]


def test_assignment_is_optimal_where_clusters_are_clear() -> None:
    """Against all equal-size assignments of six points."""
    points = F.normalize(torch.tensor([[1.0, 0.1], [1, -0.1], [0.1, 1], [-0.1, 1], [-1, 0.1], [-1, -0.1]]), dim=1)
    clusters = equal_size_clustering(points, 3, torch.Generator().manual_seed(0))

    def quality(assignment: torch.Tensor) -> float:
        return float((points * mean_directions(points, assignment, 3)[assignment]).sum())

    best = max(quality(torch.tensor(order)) for order in set(itertools.permutations([0, 0, 1, 1, 2, 2])))
    assert quality(clusters.assignment) == pytest.approx(best)


def test_centroids_are_normalised_means_of_their_members() -> None:
    points = unit_points(30, 5, 0)
    clusters = equal_size_clustering(points, 4, torch.Generator().manual_seed(1), max_iterations=100)
    for index, centroid in enumerate(clusters.centroids):
        members = points[clusters.assignment == index]
        torch.testing.assert_close(centroid, members.sum(0) / members.sum(0).norm())


def test_warm_start_and_determinism() -> None:
    points = unit_points(64, 6, 0)
    first = equal_size_clustering(points, 8, torch.Generator().manual_seed(1), max_iterations=100)
    again = equal_size_clustering(points, 8, torch.Generator().manual_seed(1), max_iterations=100)
    assert torch.equal(first.assignment, again.assignment)
    warm = equal_size_clustering(points, 8, torch.Generator().manual_seed(9), initial=first.centroids)
    assert torch.equal(warm.assignment, first.assignment), "a fixed point stays"


def test_too_many_clusters_are_refused() -> None:
    with pytest.raises(ValueError, match="from 1 to the number of points, 3, got 4"):
        equal_size_clustering(unit_points(3, 2, 0), 4, torch.Generator())


def test_mixing_is_the_largest_similarity_to_a_foreign_point() -> None:
    points = unit_points(12, 4, 0)
    clusters = Clusters(unit_points(3, 4, 1), torch.arange(12) % 3)
    naive = max(
        float(clusters.centroids[g] @ points[i]) for g in range(3) for i in range(12) if int(clusters.assignment[i]) != g
    )
    assert mixing(points, clusters) == pytest.approx(naive, abs=1e-6)


def test_one_cluster_mixes_with_no_other() -> None:
    points = F.normalize(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    clusters = equal_size_clustering(points, 1, torch.Generator().manual_seed(0))
    assert mixing(points, clusters) == -1.0
