"""Clusters of clusters: the points of every owner first, then the centroids of all owners, all of equal size.

Lubana et al., "Orchestra" (ICML 2022), Section 3: local centroids stand for the points of a client, and a point belongs to the
global cluster of its local centroid. Proposition 3.3 compares this with clustering all points in one place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.clustering.equal_size import Clusters, equal_size_clustering


def local_number(num_points: int, num_clusters: int, min_size: int) -> int:
    """How many clusters an owner makes: fewer where it has few points, none where it has fewer than ``min_size``."""
    return min(num_clusters, num_points // min_size)


def two_level_clustering(
    owners: Sequence[Tensor], num_local: int, min_size: int, num_global: int, generator: torch.Generator
) -> tuple[Clusters, Tensor]:
    """Global centroids with the global cluster of every point, and the owners that take part.

    Args:
        owners: the points of each owner, of unit norm, shape (num_points, dim).
        num_local: L, clusters per owner.
        min_size: fewest points of a local cluster; an owner with fewer takes no part.
        num_global: G, fewer where fewer local centroids come about.
        generator: draws first centroids.

    Returns:
        The clusters, whose assignment covers the points of the owners that take part, in order; and these owners' positions.
    """
    local: list[Clusters] = []
    present: list[int] = []
    for position, points in enumerate(owners):
        number = local_number(len(points), num_local, min_size)
        if number:
            local.append(equal_size_clustering(points, number, generator))
            present.append(position)
    if not local:
        return Clusters(torch.empty(0, 0), torch.empty(0, dtype=torch.long)), torch.empty(0, dtype=torch.long)
    centroids = torch.cat([clusters.centroids for clusters in local])
    whole = equal_size_clustering(centroids, min(num_global, len(centroids)), generator)
    starts = torch.tensor([len(clusters.centroids) for clusters in local]).cumsum(0).roll(1)
    starts[0] = 0
    of_points = [whole.assignment[start + clusters.assignment] for start, clusters in zip(starts, local, strict=True)]
    return Clusters(whole.centroids, torch.cat(of_points)), torch.tensor(present)
