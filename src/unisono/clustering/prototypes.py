"""Clusters of nearly equal mass by gradient steps on their prototypes, as the server of Orchestra's public code forms them.

Genevay et al., "Differentiable Deep Clustering with Cluster Size Constraints" (2019). Each step makes the softmax assignment of
the points to the prototypes more like Sinkhorn's plan, in which every cluster has the same mass. There may be fewer points than
clusters: some prototypes are then nobody's nearest.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.clustering.equal_size import Clusters
from unisono.clustering.sinkhorn import sinkhorn

NUM_STEPS = 500
LEARNING_RATE = 0.01
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
SINKHORN_STEPS = 100
"""Sinkhorn's iterations in one step, at most."""


def prototype_clustering(
    points: Tensor,
    num_clusters: int,
    generator: torch.Generator,
    initial: Tensor | None = None,
    temperature: float = 0.1,
    num_steps: int = NUM_STEPS,
) -> Clusters:
    """Return prototypes of unit norm after some steps, and the cluster of every point in Sinkhorn's last plan.

    Args:
        points: of unit norm, shape (num_points, dim), at least one.
        num_clusters: how many; more than points are allowed.
        generator: draws the first prototypes, random directions.
        initial: the first prototypes, shape (num_clusters, dim), instead.
        temperature: of the softmax.
        num_steps: of stochastic gradient descent, all on all points.
    """
    if len(points) == 0:
        raise ValueError("prototypes need at least one point")
    first = torch.randn(num_clusters, points.shape[1], generator=generator) if initial is None else initial
    prototypes = F.normalize(first, dim=1).requires_grad_()
    optimizer = torch.optim.SGD([prototypes], lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    for _ in range(num_steps):
        scores = points @ prototypes.T
        optimizer.zero_grad()
        prototype_loss(scores, _plan(scores), temperature).backward()
        optimizer.step()
        with torch.no_grad():
            prototypes.copy_(F.normalize(prototypes, dim=1))
    centroids = prototypes.detach()
    return Clusters(centroids, _plan(points @ centroids.T).argmax(dim=1))


def prototype_loss(scores: Tensor, plan: Tensor, temperature: float) -> Tensor:
    """Return minus the mean cosine between the plan and the softmax assignment of a point; a scalar in [-1, 0].

    Args:
        scores: cosines of points and prototypes, shape (num_points, num_clusters).
        plan: non-negative, same shape.
        temperature: of the softmax.
    """
    return -F.cosine_similarity(plan, F.softmax(scores / temperature, dim=1), dim=1).mean()


def _plan(scores: Tensor) -> Tensor:
    return sinkhorn(scores.detach(), max_iterations=SINKHORN_STEPS)
