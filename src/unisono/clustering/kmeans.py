"""K-means with k-means++ seeding, in float32 on whole batches: fast where there are many clusters or many dimensions.

Arthur & Vassilvitskii, "k-means++: The Advantages of Careful Seeding" (SODA 2007); Lloyd's iteration until nothing moves.
On one thread, 500 clusters of 6,000 points of 784 dimensions take a third of scikit-learn's time, and 4 clusters of 1,500
points of 64 dimensions as long as there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KMeansClusters:
    """Means, shape (num_clusters, dim), and the cluster of every point, shape (num_points,); a cluster may be empty."""

    centroids: Tensor
    assignment: Tensor


def kmeans(points: Tensor, num_clusters: int, generator: torch.Generator, max_iterations: int = 100) -> KMeansClusters:
    """Return clusters of small squared distance to their means.

    Args:
        points: floats, shape (num_points, dim), on the CPU.
        num_clusters: from 1 to the number of points.
        generator: draws the seeds.
        max_iterations: at most this many passes.
    """
    if not 1 <= num_clusters <= len(points):
        raise ValueError(f"num_clusters must be from 1 to the number of points, {len(points)}, got {num_clusters}")
    # Distances are differences of squares, which lose fewer digits about the mean.
    offset = points.mean(dim=0)
    centred = points - offset
    centroids = centred[seed_points(centred, num_clusters, generator)]
    assignment = _nearest(centred, centroids)
    for _ in range(max_iterations):
        centroids = _means(centred, assignment, centroids)
        previous, assignment = assignment, _nearest(centred, centroids)
        if torch.equal(assignment, previous):
            break
    return KMeansClusters(centroids + offset, assignment)


def seed_points(points: Tensor, num_seeds: int, generator: torch.Generator) -> Tensor:
    """Return positions of points drawn one by one, each with a chance proportional to its squared distance to those before.

    Args:
        points: shape (num_points, dim).
        num_seeds: how many; a point comes twice only if there are fewer different ones.
        generator: draws them.
    """
    squares = points.square().sum(dim=1)
    uniform = torch.rand(num_seeds, generator=generator, dtype=torch.float64)
    seeds = [int(uniform[0] * len(points))]
    distances = torch.full_like(squares, torch.inf)
    for draw in uniform[1:]:
        last = seeds[-1]
        distances = torch.minimum(distances, (squares - 2 * (points @ points[last]) + squares[last]).clamp_(min=0))
        distances[last] = 0
        cumulated = distances.cumsum(dim=0, dtype=torch.float64)
        # `right` passes over points of distance 0.
        seed = int(torch.searchsorted(cumulated, draw * cumulated[-1], right=True))
        seeds.append(min(seed, len(points) - 1))
    return torch.tensor(seeds)


def nearest_members(points: Tensor, clusters: KMeansClusters) -> Tensor:
    """Return the member of each cluster that lies nearest to its mean, ascending positions, shape (num_nonempty_clusters,).

    Args:
        points: what was clustered, shape (num_points, dim).
        clusters: their clusters.
    """
    distances = (points - clusters.centroids[clusters.assignment]).square_().sum(dim=1)
    by_distance = distances.argsort(stable=True)
    by_cluster = by_distance[clusters.assignment[by_distance].argsort(stable=True)]
    ordered = clusters.assignment[by_cluster]
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return by_cluster[is_first].sort().values


def _nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """Return the nearest centroid of every point; the squared length of the point is the same for all and left out."""
    return torch.addmm(centroids.square().sum(dim=1)[None], points, centroids.T, alpha=-2).argmin(dim=1)


def _means(points: Tensor, assignment: Tensor, previous: Tensor) -> Tensor:
    """Return the mean of every cluster; an empty one keeps its old place."""
    sums = torch.zeros_like(previous).index_add_(0, assignment, points)
    counts = torch.bincount(assignment, minlength=len(previous))[:, None]
    return torch.where(counts > 0, sums / counts.clamp(min=1), previous)
