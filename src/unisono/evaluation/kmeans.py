"""K-means on the features of an encoder: the clusters of a representation without any further learning."""

from __future__ import annotations

import torch
from torch import Tensor

RESTARTS = 10


def kmeans_clusters(train_features: Tensor, test_features: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """Return the cluster of every test sample, shape (num_test,): that of the nearest of the training features' centroids.

    Args:
        train_features: what is clustered, shape (num_train, feature_dim).
        test_features: what is assigned, shape (num_test, feature_dim).
        num_clusters: how many clusters; at most as many as there are training samples are found.
        generator: draws the seeds of the restarts, of which the best counts.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    seed = int(torch.randint(2**31, (1,), generator=generator))
    model = KMeans(min(num_clusters, len(train_features)), n_init=RESTARTS, random_state=seed)
    # Threads add in any order, and the same seed must give bit-identical results.
    with threadpool_limits(limits=1, user_api="openmp"):
        model.fit(train_features.numpy())
        return torch.from_numpy(model.predict(test_features.numpy())).long()
