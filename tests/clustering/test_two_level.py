from __future__ import annotations

import torch
import torch.nn.functional as F

from unisono.clustering.equal_size import equal_size_clustering
from unisono.clustering.two_level import local_number, two_level_clustering


def blob(direction: int, number: int, seed: int) -> torch.Tensor:
    noise = 0.01 * torch.randn(number, 4, generator=torch.Generator().manual_seed(seed))
    return F.normalize(torch.eye(4)[direction] + noise, dim=1)


def test_few_points_mean_fewer_clusters() -> None:
    assert [local_number(number, 8, 2) for number in (0, 1, 2, 7, 15, 16, 100)] == [0, 0, 1, 3, 7, 8, 8]


def test_a_point_belongs_to_the_global_cluster_of_its_local_centroid() -> None:
    owners = [blob(0, 8, 0), blob(1, 8, 1), torch.cat((blob(0, 4, 2), blob(1, 4, 3)))]
    clusters, present = two_level_clustering(owners, 2, 2, 2, torch.Generator().manual_seed(0))
    assert present.tolist() == [0, 1, 2]
    expected = torch.tensor([0] * 8 + [1] * 8 + [0] * 4 + [1] * 4)
    assert torch.equal(clusters.assignment, expected) or torch.equal(clusters.assignment, 1 - expected)
    nearest = (torch.cat(owners) @ clusters.centroids.T).argmax(dim=1)
    assert torch.equal(nearest, clusters.assignment)


def test_owners_with_too_few_points_take_no_part() -> None:
    owners = [blob(0, 1, 0), blob(1, 4, 1), blob(2, 4, 2)]
    clusters, present = two_level_clustering(owners, 1, 2, 5, torch.Generator().manual_seed(0))
    assert present.tolist() == [1, 2]
    assert len(clusters.assignment) == 8
    assert len(clusters.centroids) == 2
    clusters, present = two_level_clustering(owners[:1], 1, 2, 5, torch.Generator().manual_seed(0))
    assert len(present) == len(clusters.assignment) == 0


def test_one_owner_whose_every_pair_is_a_cluster_gets_clusters_of_pairs() -> None:
    points = torch.cat([blob(direction, 2, direction) for direction in range(4)])
    clusters, _ = two_level_clustering([points], 4, 2, 4, torch.Generator().manual_seed(1))
    direct = equal_size_clustering(points, 4, torch.Generator().manual_seed(2))
    assert len(torch.unique(torch.stack((clusters.assignment, direct.assignment)), dim=1).T) == 4
