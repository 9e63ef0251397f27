"""Weighted k-nearest-neighbour probe.

Wu et al., "Unsupervised Feature Learning via Non-Parametric Instance Discrimination" (2018).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ENTRIES = 2**22
"""Similarities held at a time: 16 MB."""
MOST_NEIGHBORS, FEWEST_NEIGHBORS = 200, 10
SAMPLES_PER_NEIGHBOR = 250
"""As in Orchestra's section 5: 200 neighbours of 50,000 samples. As many of 10,000 would be a fifth of a class."""


def knn_probe(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, k: int | None = None, temperature: float = 0.1
) -> float:
    """Return the test accuracy of a vote among the k nearest training samples, each with the weight exp(cosine / temperature).

    Args:
        train_x: features, shape (num_train, feature_dim).
        train_y: labels, shape (num_train,); a class may be missing.
        test_x: features, shape (num_test, feature_dim).
        test_y: labels, shape (num_test,).
        k: number of neighbours, or all training samples where there are fewer; None is ``fitting_neighbors``.
        temperature: the smaller, the more the nearest count.
    """
    classes, targets = torch.unique(train_y, return_inverse=True)
    train_z, test_z = F.normalize(train_x, dim=1), F.normalize(test_x, dim=1)
    k = min(fitting_neighbors(len(train_z)) if k is None else k, len(train_z))
    num_right = 0
    chunk_size = max(1, CHUNK_ENTRIES // len(train_z))
    for z, y in zip(test_z.split(chunk_size), test_y.split(chunk_size), strict=True):
        similarities, neighbors = (z @ train_z.T).topk(k, dim=1)
        # Divided by the largest weight of the row, which no vote notices, so that no temperature overflows.
        weights = ((similarities - similarities[:, :1]) / temperature).exp()
        votes = z.new_zeros(len(z), len(classes)).scatter_add_(1, targets[neighbors], weights)
        num_right += int((classes[votes.argmax(dim=1)] == y).sum())
    return num_right / len(test_y)


def fitting_neighbors(num_samples: int) -> int:
    """Return the number of neighbours that fits so many training samples."""
    return max(FEWEST_NEIGHBORS, min(MOST_NEIGHBORS, round(num_samples / SAMPLES_PER_NEIGHBOR)))
