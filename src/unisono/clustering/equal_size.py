"""Clusters of equal size on the unit sphere; sizes hold exactly, because anonymity depends on them.

Sinkhorn-Knopp gives clusters of equal *mass*; the largest entry of each row can still leave a cluster with a single point.
Here the hard assignment is capacity-constrained, so every cluster has floor(N / L) or ceil(N / L) members.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.clustering.sinkhorn import REGULARIZATION, sinkhorn


@dataclass(frozen=True)
class Clusters:
    """Centroids of unit norm, shape (num_clusters, dim), and the cluster of every point, shape (num_points,)."""

    centroids: Tensor
    assignment: Tensor

    def of_size(self, least: int) -> tuple[Tensor, Tensor]:
        """Return the centroids and the sizes of the clusters with at least this many points."""
        sizes = self.assignment.bincount(minlength=len(self.centroids))
        return self.centroids[sizes >= least], sizes[sizes >= least]


def equal_size_clustering(
    points: Tensor,
    num_clusters: int,
    generator: torch.Generator,
    initial: Tensor | None = None,
    regularization: float = REGULARIZATION,
    max_iterations: int = 20,
) -> Clusters:
    """Alternate equal-size assignment and normalised means until assignments stop changing.

    Args:
        points: of unit norm, shape (num_points, dim), at least as many as clusters.
        num_clusters: how many.
        generator: draws the first centroids.
        initial: the first centroids, shape (num_clusters, dim), instead.
        regularization: of Sinkhorn-Knopp.
        max_iterations: at most this many alternations.
    """
    if not 1 <= num_clusters <= len(points):
        raise ValueError(f"num_clusters must be from 1 to the number of points, {len(points)}, got {num_clusters}")
    centroids = spread_points(points, num_clusters, generator) if initial is None else initial
    assignment = torch.full((len(points),), -1)
    for _ in range(max_iterations):
        previous = assignment
        assignment = equal_size_assignment(sinkhorn(points @ centroids.T, regularization))
        if torch.equal(assignment, previous):
            break
        centroids = mean_directions(points, assignment, num_clusters)
    return Clusters(centroids, assignment)


def equal_size_assignment(affinity: Tensor) -> Tensor:
    """Return the cluster of every point, shape (num_points,), so that cluster sizes differ by at most one.

    Pairs of point and cluster are taken in order of affinity, as long as the point is free and the cluster has room.
    ``num_points mod num_clusters`` clusters, the first to ask, get one more than the others.

    Args:
        affinity: larger is closer, shape (num_points, num_clusters).
    """
    num_points, num_clusters = affinity.shape
    floor, num_larger = divmod(num_points, num_clusters)
    room = [floor] * num_clusters
    assignment = [-1] * num_points
    num_left = num_points
    for pair in affinity.flatten().argsort(descending=True, stable=True).tolist():
        point, cluster = divmod(pair, num_clusters)
        if assignment[point] >= 0:
            continue
        if room[cluster] == 0:
            if num_larger == 0:
                continue
            # The cluster takes one of the places beyond the floor, and asks for no second one.
            num_larger -= 1
            room[cluster] = -1
        elif room[cluster] < 0:
            continue
        else:
            room[cluster] -= 1
        assignment[point] = cluster
        num_left -= 1
        if num_left == 0:
            break
    return torch.tensor(assignment)


def mean_directions(points: Tensor, assignment: Tensor, num_clusters: int) -> Tensor:
    """Return the normalised sum of each cluster's points, shape (num_clusters, dim)."""
    sums = torch.zeros(num_clusters, points.shape[1], dtype=points.dtype).index_add_(0, assignment, points)
    return F.normalize(sums, dim=1)


def spread_points(points: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """Return first centroids as k-means++ draws them: points, each far from those before with growing probability."""
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    distance = 1 - points @ points[chosen[0]]
    for _ in range(num_clusters - 1):
        weights = distance.clamp_min(0)
        weights[chosen] = 0
        if float(weights.sum()) <= 0:
            weights = torch.ones_like(weights)
            weights[chosen] = 0
        chosen.append(int(torch.multinomial(weights, 1, generator=generator)))
        distance = torch.minimum(distance, 1 - points @ points[chosen[-1]])
    return points[chosen].clone()


def mixing(points: Tensor, clusters: Clusters) -> float:
    """Return the inter-cluster mixing delta (Orchestra, Definition 3.1): the highest similarity of a centroid to others.

    With one cluster there are no others, and delta is -1, the lowest similarity that there is.
    """
    if len(clusters.centroids) == 1:
        return -1.0
    similarity = points @ clusters.centroids.T
    similarity[torch.arange(len(points)), clusters.assignment] = -torch.inf
    return float(similarity.max())
