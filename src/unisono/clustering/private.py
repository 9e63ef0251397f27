"""Centroids that reveal little about any one point: a noisy tree of random halves, then k-means on its leaves.

Chang, Ghazi, Kumar, Manurangsi, "Locally Private k-Means in One Round" (ICML 2021), as the Orchestra paper uses it for local
differential privacy: each client is the curator of its own points. Points are clipped to the unit ball, and optionally seen
through a public random projection. SimHash (the signs of random directions) splits them again and again where a noisy count
says that there are enough of them; a leaf gives its noisy sum over its noisy count. K-means on the leaves looks at no point, so
it is free.

Neighbouring inputs differ by one point more or less.

- Counts: at one level of the tree a point lies in one node, so the counts of a level differ by 1 in L1. Noise of the
  discrete Laplace distribution, P(x) proportional to exp(-a |x|), makes a level a-private, and the tree (levels * a)-private.
- Sums: a point lies in at most one leaf and has a norm of at most 1, so all sums together differ by at most 1 in L2. Gaussian
  noise of deviation s on every coordinate is the Gaussian mechanism with noise multiplier s.

Which nodes are split depends on noisy counts alone, so both compose. The random directions look at no point and may be known.
Noise is drawn in double precision; attacks on the last digits of floating-point noise (Mironov 2012) are not defended against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.core.noise import NoiseSource


@dataclass(frozen=True)
class Noise:
    """Amount of noise that a release gets.

    Args:
        count_epsilon: a of the discrete Laplace noise on every count; smaller is noisier.
        sum_deviation: standard deviation of the Gaussian noise on every coordinate of a sum.
    """

    count_epsilon: float
    sum_deviation: float


@dataclass(frozen=True)
class Coreset:
    """A few noisy points that stand for many.

    Args:
        points: means of leaves, float64 in the unit ball, shape (num_leaves, dim).
        weights: noisy counts, at least 1, shape (num_leaves,).
    """

    points: Tensor
    weights: Tensor


def private_centroids(
    points: Tensor,
    num_clusters: int,
    depth: int,
    noise: Noise,
    hashing: torch.Generator,
    source: NoiseSource,
    *,
    projection: Tensor | None = None,
    min_count: int = 2,
) -> Tensor:
    """Return centroids of unit norm, float32 of shape (at most num_clusters, dim); none where noise leaves no leaf.

    Args:
        points: shape (num_points, dim), even (0, dim).
        num_clusters: at most this many.
        depth: levels of the tree.
        noise: how much.
        hashing: draws the random directions; it may be public.
        source: draws the noise, which must stay secret, and the seeds of k-means, which need not.
        projection: what ``random_projection`` gave; None looks at the points as they are.
        min_count: a leaf whose noisy count is lower is left out.
    """
    seen = points.double() if projection is None else points.double() @ projection.T
    directions = torch.randn(depth, seen.shape[1], generator=hashing, dtype=torch.float64)
    coreset = private_coreset(seen, directions, noise, source, min_count)
    if len(coreset.points) == 0:
        return torch.empty(0, points.shape[1])
    centroids = weighted_kmeans(coreset, min(num_clusters, len(coreset.points)), source.generator)
    return F.normalize(centroids if projection is None else centroids @ projection, dim=1).float()


def private_coreset(points: Tensor, directions: Tensor, noise: Noise, source: NoiseSource, min_count: int = 2) -> Coreset:
    """Return noisy means and counts of the leaves of a SimHash tree.

    The root is split without a look at its size. A node is split further if its noisy count is at least twice ``min_count``.

    Args:
        points: shape (num_points, dim); clipped to the unit ball here.
        directions: whose signs split the points, one per level, shape (depth, dim).
        noise: how much.
        source: draws it.
        min_count: leaves with a lower noisy count are left out.
    """
    points = clip_to_ball(points.double())
    bits = (points @ directions.double().T > 0).long()
    codes = torch.zeros(len(points), dtype=torch.long)
    leaves: list[Tensor] = []
    counts: list[Tensor] = []
    nodes = torch.zeros(1, dtype=torch.long)
    for level, bit in enumerate(bits.T, start=1):
        codes = 2 * codes + bit
        nodes = torch.cat((2 * nodes, 2 * nodes + 1))
        members = codes == nodes[:, None]
        noisy = members.sum(dim=1) + discrete_laplace(noise.count_epsilon, len(nodes), source)
        split = noisy >= 2 * min_count if level < len(directions) else torch.zeros_like(noisy, dtype=torch.bool)
        kept = ~split & (noisy >= min_count)
        leaves.append(members[kept].double())
        counts.append(noisy[kept])
        nodes = nodes[split]
    sums = torch.cat(leaves) @ points
    sums += source.normal(*sums.shape) * noise.sum_deviation
    weights = torch.cat(counts).double()
    return Coreset(clip_to_ball(sums / weights[:, None]), weights)


def weighted_kmeans(coreset: Coreset, num_clusters: int, generator: torch.Generator, max_iterations: int = 50) -> Tensor:
    """Return weighted means of clusters of small weighted squared distance, shape (num_clusters, dim).

    Seeds are drawn as in k-means++: with a chance proportional to weight x squared distance to the seeds before.

    Args:
        coreset: at least ``num_clusters`` points.
        num_clusters: how many.
        generator: draws the seeds.
        max_iterations: at most this many passes.
    """
    points, weights = coreset.points, coreset.weights
    chances = weights.clone()
    seeds: list[int] = []
    for _ in range(num_clusters):
        chances[seeds] = 0
        if float(chances.sum()) <= 0:  # points that lie on top of the seeds
            chances = torch.ones_like(weights)
            chances[seeds] = 0
        seeds.append(int(torch.multinomial(chances, 1, generator=generator)))
        chances = weights * torch.cdist(points, points[seeds]).square().amin(dim=1)
    centroids, assignment = points[seeds], torch.full((len(points),), -1)
    for _ in range(max_iterations):
        previous, assignment = assignment, torch.cdist(points, centroids).argmin(dim=1)
        if torch.equal(assignment, previous):
            break
        totals = torch.zeros(num_clusters, dtype=points.dtype).index_add_(0, assignment, weights)[:, None]
        sums = torch.zeros_like(centroids).index_add_(0, assignment, points * weights[:, None])
        centroids = torch.where(totals > 0, sums / totals.clamp(min=1e-12), centroids)
    return centroids


def discrete_laplace(epsilon: float, num_draws: int, source: NoiseSource) -> Tensor:
    """Return whole numbers x with P(x) proportional to exp(-epsilon |x|), int64 of shape (num_draws,).

    The difference of two geometric numbers is such a number, and floor(-log(u) / epsilon) with u uniform in (0, 1] is one of
    these: it is at least k if u <= exp(-epsilon k).
    """
    uniform = 1 - source.uniform(2, num_draws)
    geometric: Tensor = (-uniform.log() / epsilon).floor().long()
    return geometric[0] - geometric[1]


def random_projection(in_dim: int, out_dim: int, generator: torch.Generator) -> Tensor:
    """Return a random projection that keeps lengths on average, float64 of shape (out_dim, in_dim); its rows are orthogonal.

    Args:
        in_dim: width of the points.
        out_dim: at most in_dim.
        generator: public, and the same wherever projected points are compared.
    """
    basis: Tensor = torch.linalg.qr(torch.randn(in_dim, out_dim, generator=generator, dtype=torch.float64)).Q
    return basis.T * math.sqrt(in_dim / out_dim)


def clip_to_ball(points: Tensor) -> Tensor:
    """Return points of norm above 1 scaled to norm 1, the others as they are; shape (num_points, dim)."""
    norms: Tensor = torch.linalg.vector_norm(points, dim=1, keepdim=True)
    return points / norms.clamp(min=1)
