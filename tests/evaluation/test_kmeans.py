from __future__ import annotations

import torch

from unisono.evaluation.clusters import ari
from unisono.evaluation.kmeans import kmeans_clusters


def blobs(seed: int, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (num,), generator=generator)
    return 10 * torch.eye(3)[labels] + torch.randn(num, 3, generator=generator), labels


def test_separate_blobs_are_found() -> None:
    (train, _), (test, labels) = blobs(0, 60), blobs(1, 40)
    clusters = kmeans_clusters(train, test, 3, torch.Generator().manual_seed(0))
    assert clusters.dtype == torch.int64
    assert ari(labels, clusters) == 1
    again = kmeans_clusters(train, test, 3, torch.Generator().manual_seed(0))
    assert torch.equal(clusters, again)


def test_fewer_samples_than_clusters() -> None:
    features = torch.eye(2)
    assert sorted(kmeans_clusters(features, features, 5, torch.Generator().manual_seed(0)).tolist()) == [0, 1]
