"""Weighted k-nearest-neighbour probe.

Wu et al., "Unsupervised Feature Learning via Non-Parametric Instance Discrimination" (2018).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ENTRIES = 2**22
"""Similarities held at a time: 16 MB."""


def knn_probe(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, k: int = 200, temperature: float = 0.1
) -> float:
    """Return the test accuracy of a vote among the k nearest training samples, each with the weight exp(cosine / temperature).

    Args:
        train_x: features, shape (num_train, feature_dim).
        train_y: labels, shape (num_train,); a class may be missing.
        test_x: features, shape (num_test, feature_dim).
        test_y: labels, shape (num_test,).
        k: number of neighbours; all training samples where there are fewer.
        temperature: the smaller, the more the nearest count.
    """
    classes, targets = torch.unique(train_y, return_inverse=True)
    train_z, test_z = F.normalize(train_x, dim=1), F.normalize(test_x, dim=1)
    k = min(k, len(train_z))
    num_right = 0
    chunk_size = max(1, CHUNK_ENTRIES // len(train_z))
    for z, y in zip(test_z.split(chunk_size), test_y.split(chunk_size), strict=True):
        similarities, neighbors = (z @ train_z.T).topk(k, dim=1)
        # Divided by the largest weight of the row, which no vote notices, so that no temperature overflows.
        weights = ((similarities - similarities[:, :1]) / temperature).exp()
        votes = z.new_zeros(len(z), len(classes)).scatter_add_(1, targets[neighbors], weights)
        num_right += int((classes[votes.argmax(dim=1)] == y).sum())
    return num_right / len(test_y)
