"""Sinkhorn-Knopp: a soft assignment of points to clusters in which every cluster has the same mass.

Cuturi, "Sinkhorn Distances" (NeurIPS 2013);
Genevay et al., "Differentiable Deep Clustering with Cluster Size Constraints" (2019).
"""

from __future__ import annotations

import torch
from torch import Tensor

REGULARIZATION = 0.04
"""Entropic regularisation on cosine similarities."""


def sinkhorn(
    similarity: Tensor, regularization: float = REGULARIZATION, max_iterations: int = 200, tolerance: float = 1e-2
) -> Tensor:
    """Return the transport plan, shape (num_points, num_clusters): rows sum to 1, columns to num_points / num_clusters.

    The rows hold exactly; the iteration stops when the columns do to within ``tolerance``. Rows are scaled by their largest
    entry first, so similarities of any size are safe in double precision.

    Args:
        similarity: larger is closer, shape (num_points, num_clusters).
        regularization: smaller means harder assignments.
        max_iterations: at most this many.
        tolerance: largest relative error of a cluster's mass.
    """
    num_points, num_clusters = similarity.shape
    scaled = similarity.double() / regularization
    kernel = (scaled - scaled.amax(dim=1, keepdim=True)).clamp_min_(-600).exp_()
    transposed = kernel.T.contiguous()
    columns = torch.ones(num_clusters, dtype=torch.float64)
    target = num_points / num_clusters
    for iteration in range(max_iterations):
        rows = (kernel @ columns).reciprocal_()
        mass = transposed @ rows
        if iteration % 10 == 9 and float((mass * columns / target - 1).abs().max()) < tolerance:
            break
        columns = mass.reciprocal_().mul_(target)
    plan = kernel * columns
    return (plan / plan.sum(dim=1, keepdim=True)).to(similarity.dtype)
