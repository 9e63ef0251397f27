"""Two-level clustering: first the points of every client, then the centroids of all clients, all of equal size.

Lubana et al., "Orchestra" (ICML 2022), Section 3: local centroids stand for the points of a client, and a point belongs to the
global cluster of its local centroid. Proposition 3.3 compares this with clustering all points in one place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.clustering.equal_size import Clusters, equal_size_clustering


def local_number(num_points: int, num_clusters: int, min_size: int) -> int:
    """Return the number of clusters of a client: fewer where it has few points, none where it has fewer than ``min_size``."""
    return min(num_clusters, num_points // min_size)


def two_level_clustering(
    clients: Sequence[Tensor], num_local: int, min_size: int, num_global: int, generator: torch.Generator
) -> tuple[Clusters, Tensor]:
    """Return global centroids with the global cluster of every point, and the clients that take part.

    Args:
        clients: the points of each client, of unit norm, shape (num_points, dim).
        num_local: L, clusters per client.
        min_size: fewest points of a local cluster; a client with fewer takes no part.
        num_global: G, fewer where fewer local centroids come about.
        generator: draws first centroids.

    Returns:
        The clusters, whose assignment covers the points of the clients that take part, in order; and these clients' positions.
    """
    local: list[Clusters] = []
    present: list[int] = []
    for position, points in enumerate(clients):
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


def both_clusterings(
    clients: Sequence[Tensor], num_local: int, min_size: int, num_global: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the cluster of every point if all are clustered in one place, and its global cluster; nothing without clients.

    The clustering in one place is the closest to its centroids of three: one that starts from the global centroids, so that the
    two do not differ by a mere change of start, and two that start anew, so that they do not agree where global centroids are
    poor. Arguments as of ``two_level_clustering``.
    """
    clusters, present = two_level_clustering(clients, num_local, min_size, num_global, generator)
    if len(present) == 0:
        return clusters.assignment, clusters.assignment
    points = torch.cat([clients[position] for position in present.tolist()])
    starts = (clusters.centroids, None, None)
    found = [equal_size_clustering(points, len(clusters.centroids), generator, start) for start in starts]
    ideal = max(found, key=lambda each: float((points * each.centroids[each.assignment]).sum()))
    return ideal.assignment, clusters.assignment
