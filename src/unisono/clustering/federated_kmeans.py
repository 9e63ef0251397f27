"""One step of Lloyd's k-means taken apart: sums and counts where the points are, new centroids from their totals anywhere.

The totals over all owners of the points are those of the points in one place, so federated k-means takes the same steps as
k-means; Dhillon & Modha, "A Data-Clustering Algorithm on Distributed Memory Multiprocessors" (2002).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 4096
"""Points whose distances are held at a time."""


@dataclass(frozen=True)
class ClusterTotals:
    """What the points of one owner say about the clusters.

    Args:
        sums: of the points of each cluster, shape (num_clusters, dim).
        counts: number of points of each cluster, floats, shape (num_clusters,).
        squared_distance: total of the points' squared distances to their centroids.
    """

    sums: Tensor
    counts: Tensor
    squared_distance: float


def cluster_totals(points: Tensor, centroids: Tensor) -> ClusterTotals:
    """Sums and counts of the points nearest to each centroid.

    Args:
        points: shape (num_points, dim).
        centroids: shape (num_clusters, dim).
    """
    sums, counts = torch.zeros_like(centroids), torch.zeros(len(centroids))
    total = 0.0
    for part in points.split(CHUNK):
        distances, nearest = torch.cdist(part, centroids).min(dim=1)
        sums.index_add_(0, nearest, part)
        counts += torch.bincount(nearest, minlength=len(centroids))
        total += float(distances.double().square().sum())
    return ClusterTotals(sums, counts, total)


def without_small_clusters(totals: ClusterTotals, min_size: int) -> ClusterTotals:
    """The same totals with clusters of fewer than ``min_size`` points emptied, for the sum of one point is that point."""
    kept = totals.counts >= min_size
    return ClusterTotals(totals.sums * kept[:, None], totals.counts * kept, totals.squared_distance)


def next_centroids(sums: Tensor, counts: Tensor, previous: Tensor) -> Tensor:
    """The means of the clusters, shape (num_clusters, dim); an empty cluster keeps its old place.

    Args:
        sums: totals over all owners, or any multiple of them, shape (num_clusters, dim).
        counts: the same multiple of the totals, shape (num_clusters,).
        previous: the centroids that the points were assigned to.
    """
    filled = (counts > 0)[:, None]
    return torch.where(filled, sums / torch.where(filled, counts[:, None], 1.0), previous)
