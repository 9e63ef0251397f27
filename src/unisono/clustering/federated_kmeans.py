"""One step of Lloyd's k-means in two parts: sums and counts where the points are, new centroids from their totals.

The totals over all clients are those of the points in one place, so federated k-means takes the same steps as
k-means; Dhillon & Modha, "A Data-Clustering Algorithm on Distributed Memory Multiprocessors" (2002).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unisono.clustering.kmeans import kmeans

CHUNK = 4096
"""Points whose distances are held at a time."""
RESTARTS = 10
"""Centroids are few, so a merge can be tried often; a single one now and then merges what does not belong together."""


@dataclass(frozen=True)
class ClusterTotals:
    """Sums, counts and squared distances of one client's points by cluster.

    Args:
        sums: of the points of each cluster, shape (num_clusters, dim).
        counts: number of points of each cluster, floats, shape (num_clusters,).
        squared_distance: total of the points' squared distances to their centroids.
    """

    sums: Tensor
    counts: Tensor
    squared_distance: float


def cluster_totals(points: Tensor, centroids: Tensor, min_size: int = 1) -> ClusterTotals | None:
    """Return sums and counts of the points nearest to each centroid; None where there are fewer than ``min_size`` points.

    The sum of one point is that point. So a cluster of fewer than ``min_size`` points is dissolved, the smallest first, and its
    points go to the nearest of the clusters that are left: emptied instead, it would be the difference to the whole.

    Args:
        points: shape (num_points, dim).
        centroids: shape (num_clusters, dim).
        min_size: fewest points of a cluster that is shown.
    """
    if len(points) < min_size:
        return None
    open_clusters = torch.ones(len(centroids), dtype=torch.bool)
    while True:
        totals = _totals(points, centroids, open_clusters)
        small = open_clusters & (totals.counts < min_size)
        if not bool(small.any()):
            return totals
        empty = small & (totals.counts == 0)
        # Empty clusters can go together: no point moves.
        smallest = torch.where(small, totals.counts, torch.inf).argmin()
        open_clusters &= ~empty if bool(empty.any()) else torch.arange(len(centroids)) != smallest


def _totals(points: Tensor, centroids: Tensor, open_clusters: Tensor) -> ClusterTotals:
    sums, counts = torch.zeros_like(centroids), torch.zeros(len(centroids))
    total = 0.0
    for part in points.split(CHUNK):
        reach = torch.cdist(part, centroids).masked_fill(~open_clusters, torch.inf)
        distances, nearest = reach.min(dim=1)
        sums.index_add_(0, nearest, part)
        counts += torch.bincount(nearest, minlength=len(centroids))
        total += float(distances.double().square().sum())
    return ClusterTotals(sums, counts, total)


def next_centroids(sums: Tensor, counts: Tensor, previous: Tensor) -> Tensor:
    """Return the means of the clusters, shape (num_clusters, dim); an empty cluster keeps its old place.

    Args:
        sums: totals over all clients, or any multiple of them, shape (num_clusters, dim).
        counts: the same multiple of the totals, shape (num_clusters,).
        previous: the centroids that the points were assigned to.
    """
    filled = (counts > 0)[:, None]
    return torch.where(filled, sums / torch.where(filled, counts[:, None], 1.0), previous)


def own_clusters(points: Tensor, num_clusters: int, min_size: int, generator: torch.Generator) -> ClusterTotals | None:
    """Return the k-means clusters of one client's points with at least ``min_size`` members; None where there is none.

    Args:
        points: shape (num_points, dim).
        num_clusters: most clusters to find; a client of few points finds fewer.
        min_size: smaller clusters are left out, and with them their members' distances.
        generator: draws the seeds of k-means.
    """
    num_found = min(num_clusters, len(points) // min_size)
    if num_found == 0:
        return None
    clusters = kmeans(points, num_found, generator)
    counts = torch.bincount(clusters.assignment, minlength=num_found)
    shown = counts >= min_size
    if not bool(shown.any()):
        return None
    distances = (points - clusters.centroids[clusters.assignment]).square().sum(dim=1)[shown[clusters.assignment]]
    sums = clusters.centroids * counts[:, None]
    return ClusterTotals(sums[shown], counts[shown].float(), float(distances.double().sum()))


def merge_clusters(centroids: Tensor, counts: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """Return clusters of all clients' clusters, each the mean of the points behind it, shape (at most num_clusters, dim).

    Dennis et al., "Heterogeneity for the Win: One-Shot Federated Clustering" (ICML 2021).

    Args:
        centroids: those of all clients, shape (num_centroids, dim).
        counts: the points behind each, shape (num_centroids,).
        num_clusters: how many to make; where there are no more centroids than that, they are the clusters.
        generator: draws the seeds of k-means, of whose runs the one with the smallest squared distances counts.
    """
    if len(centroids) <= num_clusters:
        return centroids
    merges = [_merge_once(centroids, counts, num_clusters, generator) for _ in range(RESTARTS)]
    return min(merges, key=lambda merged: float((torch.cdist(centroids, merged).amin(dim=1).square() * counts).sum()))


def _merge_once(centroids: Tensor, counts: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    clusters = kmeans(centroids, num_clusters, generator)
    sums = torch.zeros_like(clusters.centroids).index_add_(0, clusters.assignment, centroids * counts[:, None])
    totals = torch.zeros(num_clusters).index_add_(0, clusters.assignment, counts)
    return next_centroids(sums, totals, clusters.centroids)
