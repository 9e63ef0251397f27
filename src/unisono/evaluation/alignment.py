"""Scores that need no labels: Align, Unif and their sum, which tunes hyper-parameters, and the stability of clusters.

Lubana et al., "Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering" (2022), Eq. 5, after Wang and
Isola, "Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere" (2020). With the
signs of Eq. 5, higher is better for all of them. Each function looks at one client; the mean over clients is the caller's.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from unisono.evaluation.clusters import ari

CHUNK_ENTRIES = 2**22
"""Similarities held at a time: 16 MB."""


def align(z1: Tensor, z2: Tensor) -> float:
    """Return Align, the mean cosine similarity of a sample's two features, in [-1, 1]; higher is better.

    Args:
        z1: one client's features of its samples, shape (num_samples, feature_dim).
        z2: features of an augmentation of each, in the same order and shape.
    """
    return F.cosine_similarity(z1, z2, dim=1).double().mean().item()


def uniformity(z: Tensor, tau: float = 0.2) -> float:
    """Return Unif, minus the mean over x of log mean over y of exp(cos(x, y) / tau), in [-1 / tau, 1 / tau]; higher is better.

    As in Eq. 5, y runs over all samples, x itself included, so the value of a few samples is lower than that of many.

    Args:
        z: one client's features, shape (num_samples, feature_dim).
        tau: the parameter of the von Mises-Fisher distribution.
    """
    z = F.normalize(z, dim=1)
    chunk_size = max(1, CHUNK_ENTRIES // len(z))
    log_sums = math.fsum(float((part @ z.T / tau).logsumexp(dim=1).double().sum()) for part in z.split(chunk_size))
    return math.log(len(z)) - log_sums / len(z)


def stability(previous: Tensor, current: Tensor) -> float:
    """Return the adjusted Rand index between the clusters of the same samples in two rounds: 1 where nothing moved.

    Args:
        previous: shape (num_samples,).
        current: shape (num_samples,).
    """
    return ari(previous, current)
