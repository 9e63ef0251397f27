"""Quality of clusters: against labels (accuracy, NMI, ARI), and by themselves (sizes, balance, silhouette)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def clustering_accuracy(labels: Tensor, clusters: Tensor) -> float:
    """Return the share of samples whose cluster is matched to their label, under the best one-to-one matching (Hungarian).

    With more clusters than labels, or the other way round, what is left over is matched to nothing and counts as wrong.

    Args:
        labels: shape (num_samples,).
        clusters: shape (num_samples,).
    """
    from scipy.optimize import linear_sum_assignment

    _, rows = torch.unique(labels, return_inverse=True)
    _, columns = torch.unique(clusters, return_inverse=True)
    num_columns = int(columns.max()) + 1
    num_cells = (int(rows.max()) + 1) * num_columns
    counts = torch.bincount(rows * num_columns + columns, minlength=num_cells).view(-1, num_columns).numpy()
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / len(labels))


def nmi(labels: Tensor, clusters: Tensor) -> float:
    """Return the mutual information of labels and clusters over the arithmetic mean of their entropies, in [0, 1]."""
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(labels.numpy(), clusters.numpy()))


def ari(labels: Tensor, clusters: Tensor) -> float:
    """Return the adjusted Rand index: 1 for the same partition, about 0 for unrelated ones."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(labels.numpy(), clusters.numpy()))


def cluster_sizes(clusters: Tensor, num_clusters: int) -> Tensor:
    """Return the number of samples in each cluster, shape (num_clusters,); empty clusters count.

    Args:
        clusters: numbers below num_clusters, shape (num_samples,).
        num_clusters: how many clusters there are.
    """
    return torch.bincount(clusters, minlength=num_clusters)


def cluster_balance(clusters: Tensor, num_clusters: int) -> float:
    """Return the entropy of the cluster sizes over its maximum: 1 for equal sizes, 0 where one cluster holds everything.

    Args:
        clusters: numbers below num_clusters, shape (num_samples,).
        num_clusters: how many clusters there are, empty ones included; a single one counts as balanced.
    """
    if num_clusters == 1:
        return 1.0
    shares = cluster_sizes(clusters, num_clusters).double() / len(clusters)
    return float(torch.special.entr(shares).sum()) / math.log(num_clusters)


def silhouette(features: Tensor, clusters: Tensor, generator: torch.Generator, max_samples: int = 2000) -> float:
    """Return the mean silhouette of a random part of the samples in cosine distance, in [-1, 1]; 0 where it is not defined.

    It is not defined for a single cluster, nor where every sample is a cluster of its own.

    Args:
        features: shape (num_samples, feature_dim).
        clusters: shape (num_samples,).
        generator: draws the part.
        max_samples: its size; the time grows with the square.
    """
    from sklearn.metrics import silhouette_score

    part = torch.randperm(len(features), generator=generator)[:max_samples]
    num_found = len(clusters[part].unique())
    if not 2 <= num_found < len(part):
        return 0.0
    return float(silhouette_score(features[part].numpy(), clusters[part].numpy(), metric="cosine"))
