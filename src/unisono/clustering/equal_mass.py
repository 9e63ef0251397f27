"""Clusters of nearly equal size on the unit sphere, as the clients of Orchestra's public code form them.

Sinkhorn-Knopp gives all clusters the same mass; each point then joins the cluster of its largest share. Sizes differ, and a
cluster may end with a point or none, so what is sent of it must be looked at: ``equal_size.py`` makes sizes exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unisono.clustering.equal_size import Clusters, mean_directions
from unisono.clustering.sinkhorn import sinkhorn

ALTERNATIONS = 5
SINKHORN_STEPS = 10


def equal_mass_clustering(points: Tensor, num_clusters: int, generator: torch.Generator) -> Clusters:
    """Alternate Sinkhorn's plan, the largest share of each point, and normalised means, five times.

    Args:
        points: of unit norm, shape (num_points, dim), at least as many as clusters.
        num_clusters: how many; a cluster that loses all its points keeps its centroid.
        generator: chooses the points that are the first centroids.
    """
    if not 1 <= num_clusters <= len(points):
        raise ValueError(f"num_clusters must be from 1 to the number of points, {len(points)}, got {num_clusters}")
    centroids = points[torch.randperm(len(points), generator=generator)[:num_clusters]]
    assignment = torch.zeros(len(points), dtype=torch.long)
    for _ in range(ALTERNATIONS):
        plan = sinkhorn(points @ centroids.T, max_iterations=SINKHORN_STEPS, tolerance=0.0)
        assignment = plan.argmax(dim=1)
        taken = assignment.bincount(minlength=num_clusters)[:, None] > 0
        centroids = torch.where(taken, mean_directions(points, assignment, num_clusters), centroids)
    return Clusters(centroids, assignment)
