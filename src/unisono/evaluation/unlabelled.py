"""Tell without labels if something was learnt: the probe ``unlabelled``; pixels and untrained weights have the same numbers.

- ``view-agreement``: share of samples whose two views are nearest to each other among the views of all samples.
- ``effective-rank``: exp of the entropy of the singular values of the centred directions (Roy and Vetterli, "The effective
  rank", 2007), and ``mean-cosine`` of two samples: a rank near 1 or a cosine near 1 is a collapse.
- ``own-site``: share of the nearest neighbours that come from the sample's own site.
- ``kmeans-agreement`` and ``cluster-agreement``: how often two views share their cluster, corrected for chance (Cohen's kappa).
- ``kmeans-stability``: adjusted Rand index between clusters of k-means before and after the last round; ``kmeans-balance``.

A capped number of samples is looked at, so it costs the same for any data set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.evaluation.alignment import stability
from unisono.evaluation.clusters import cluster_balance
from unisono.evaluation.kmeans import kmeans_clusters
from unisono.evaluation.search import nearest_rows

MOST_SAMPLES, FEWEST_SAMPLES = 1000, 250
NEIGHBORS = 10
CLUSTERS = 10
"""Clusters of k-means where nobody says how many; as many as the gallery shows."""


@dataclass(frozen=True)
class SeenSamples:
    """Features of the samples that the probe looks at.

    Args:
        plain: of the samples as they are, shape (num_samples, feature_dim).
        first: of a view of each.
        second: of another view of each.
        before: of the samples by the encoder of the round before; None where there is none.
        clusters: of both views by the method's own clusters; None where it has none.
        num_clusters: of k-means.
        sites: where each sample comes from, shape (num_samples,); None where there are no sites.
    """

    plain: Tensor
    first: Tensor
    second: Tensor
    before: Tensor | None
    clusters: tuple[Tensor, Tensor] | None
    num_clusters: int
    sites: Tensor | None


def unlabelled_numbers(seen: SeenSamples, generator: Callable[[], torch.Generator]) -> dict[str, float]:
    """Return all numbers that the samples allow.

    Args:
        seen: features.
        generator: called for a generator in the same state each time, so that k-means differs by the features alone.
    """
    numbers = {
        "view-agreement": view_agreement(seen.first, seen.second),
        "effective-rank": effective_rank(seen.plain),
        "mean-cosine": mean_cosine(seen.plain),
    }
    if seen.sites is not None and len(seen.sites.unique()) > 1:
        numbers["own-site"] = own_site_share(seen.plain, seen.sites)
    if seen.clusters is not None:
        numbers["cluster-agreement"] = kappa(*seen.clusters)
        return numbers
    if len(seen.plain) < 2 * seen.num_clusters or seen.plain.shape != seen.first.shape:
        return numbers  # raw pixels of views that are smaller than the samples cannot be compared with them
    directions = F.normalize(seen.plain, dim=1)
    views = F.normalize(torch.cat((seen.first, seen.second)), dim=1)
    found = kmeans_clusters(directions, torch.cat((directions, views)), seen.num_clusters, generator())
    now, first, second = found.chunk(3)
    numbers["kmeans-agreement"] = kappa(first, second)
    numbers["kmeans-balance"] = cluster_balance(now, seen.num_clusters)
    if seen.before is not None:
        before = F.normalize(seen.before, dim=1)
        numbers["kmeans-stability"] = stability(kmeans_clusters(before, before, seen.num_clusters, generator()), now)
    return numbers


def view_agreement(first: Tensor, second: Tensor) -> float:
    """Return the share of samples whose view is nearest to the other view of the same sample, in both directions.

    Of several views that are equally near, one counts by its share; features that are all equal give 1 / num_samples.

    Args:
        first: features of one view of each sample, shape (num_samples, feature_dim).
        second: features of another view, in the same order.
    """
    similar = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T
    return (_found(similar) + _found(similar.T)) / 2


def _found(similar: Tensor) -> float:
    own = similar.diagonal()[:, None]
    wins = (similar <= own).all(dim=1)
    return float((wins.double() / (similar == own).sum(dim=1)).mean())


def effective_rank(features: Tensor) -> float:
    """Return how many dimensions the directions of features spread over; 0 where all are equal.

    Args:
        features: shape (num_samples, feature_dim).
    """
    directions = F.normalize(features.double(), dim=1)
    values = torch.linalg.svdvals(directions - directions.mean(dim=0))
    if float(values.max()) <= 1e-6 * len(features) ** 0.5:
        return 0.0
    return float(torch.special.entr(values / values.sum()).sum().exp())


def mean_cosine(features: Tensor) -> float:
    """Return the mean cosine of two different samples; 1 where there is only one.

    Args:
        features: shape (num_samples, feature_dim).
    """
    number = len(features)
    if number < 2:
        return 1.0
    directions = F.normalize(features.double(), dim=1)
    own = directions.square().sum()
    return float((directions.sum(dim=0).square().sum() - own) / (number * (number - 1)))


def own_site_share(features: Tensor, sites: Tensor) -> float:
    """Return the share of the nearest neighbours that come from the sample's own site; every site counts the same.

    Args:
        features: shape (num_samples, feature_dim).
        sites: shape (num_samples,).
    """
    rows, _ = nearest_rows(features, features, NEIGHBORS, torch.arange(len(features)))
    same = (sites[rows] == sites[:, None]).double().mean(dim=1)
    return float(torch.stack([same[sites == site].mean() for site in sites.unique()]).mean())


def kappa(first: Tensor, second: Tensor) -> float:
    """Return Cohen's kappa of two assignments: 1 where all agree, 0 where as many do as by chance; 0 for a single cluster.

    Args:
        first: clusters, shape (num_samples,).
        second: clusters of the same samples.
    """
    number = int(max(first.max(), second.max())) + 1
    shares = [torch.bincount(part, minlength=number).double() / len(part) for part in (first, second)]
    expected = float(shares[0] @ shares[1])
    observed = float((first == second).double().mean())
    return 0.0 if expected >= 1 else (observed - expected) / (1 - expected)
