from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.evaluation.clusters import ari, cluster_balance, cluster_sizes, clustering_accuracy, nmi, silhouette


def brute_force(labels: list[int], clusters: list[int]) -> float:
    """The best accuracy over every injective map of clusters to labels; dummies stand for "matched to nothing"."""
    names = sorted(set(clusters))
    targets = [*sorted(set(labels)), *([None] * len(names))]
    best = 0
    for images in set(permutations(targets, len(names))):
        matched = dict(zip(names, images, strict=True))
        best = max(best, sum(matched[cluster] == label for label, cluster in zip(labels, clusters, strict=True)))
    return best / len(labels)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=25))
def test_accuracy_is_the_best_of_all_matchings(pairs):
    labels, clusters = [label for label, _ in pairs], [10 * cluster - 7 for _, cluster in pairs]
    expected = brute_force(labels, clusters)
    assert clustering_accuracy(torch.tensor(labels), torch.tensor(clusters)) == pytest.approx(expected)


def test_more_clusters_than_labels_and_fewer():
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    assert clustering_accuracy(labels, torch.tensor([0, 0, 1, 2, 2, 3])) == pytest.approx(4 / 6)
    assert clustering_accuracy(labels, torch.zeros(6, dtype=torch.long)) == pytest.approx(3 / 6)


def test_a_renamed_partition_is_perfect():
    labels = torch.randint(7, (200,), generator=torch.Generator().manual_seed(0))
    renamed = torch.randperm(7, generator=torch.Generator().manual_seed(1))[labels]
    for score in (clustering_accuracy, nmi, ari):
        assert score(labels, renamed) == pytest.approx(1.0)


def test_nmi_and_ari_by_hand():
    """Labels 0011, clusters 0012: I = ln 2, H(labels) = ln 2, H(clusters) = 1.5 ln 2, so NMI = 1 / 1.25.

    Pairs together in both: 1; in labels 2, in clusters 1, of 6: ARI = (1 - 1/3) / (1.5 - 1/3) = 4/7.
    """
    labels, clusters = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 2])
    assert nmi(labels, clusters) == pytest.approx(0.8)
    assert ari(labels, clusters) == pytest.approx(4 / 7)


def test_unrelated_partitions_score_about_nothing():
    generator = torch.Generator().manual_seed(0)
    labels, clusters = (torch.randint(5, (5000,), generator=generator) for _ in range(2))
    assert abs(ari(labels, clusters)) < 0.01
    assert nmi(labels, clusters) < 0.01
    assert clustering_accuracy(labels, clusters) < 0.24


def test_sizes_and_balance_count_empty_clusters():
    clusters = torch.tensor([0, 0, 2, 2])
    assert cluster_sizes(clusters, 4).tolist() == [2, 0, 2, 0]
    assert cluster_balance(clusters, 4) == pytest.approx(0.5)
    assert cluster_balance(torch.arange(8) % 4, 4) == pytest.approx(1.0)
    assert cluster_balance(torch.zeros(8, dtype=torch.long), 4) == pytest.approx(0.0)
    assert cluster_balance(torch.zeros(8, dtype=torch.long), 1) == 1.0


def test_silhouette_by_loops_and_its_limits():
    generator = torch.Generator().manual_seed(0)
    features, clusters = torch.randn(30, 4, generator=generator), torch.arange(30) % 3
    values = _silhouettes(torch.nn.functional.normalize(features.double(), dim=1), clusters)
    assert silhouette(features, clusters, generator) == pytest.approx(sum(values) / 30, abs=1e-5)
    assert silhouette(features, torch.zeros(30, dtype=torch.long), generator) == 0.0
    assert silhouette(features, torch.arange(30), generator) == 0.0


def _silhouettes(z: torch.Tensor, clusters: torch.Tensor) -> list[float]:
    values = []
    for i in range(len(z)):
        others = torch.arange(len(z)) != i
        means = {int(c): float((1 - z[others & (clusters == c)] @ z[i]).mean()) for c in clusters.unique()}
        own = means.pop(int(clusters[i]))
        nearest = min(means.values())
        values.append((nearest - own) / max(nearest, own))
    return values


def test_silhouette_looks_at_a_part_that_the_generator_draws():
    features = torch.cat([torch.eye(2)[[0]].repeat(50, 1), torch.eye(2)[[1]].repeat(50, 1)])
    clusters = torch.arange(100) // 50
    assert silhouette(features, clusters, torch.Generator().manual_seed(0), max_samples=20) == pytest.approx(1.0)
    noisy = features + torch.randn(100, 2, generator=torch.Generator().manual_seed(3))
    first, again, other = (
        silhouette(noisy, clusters, torch.Generator().manual_seed(seed), max_samples=20) for seed in (0, 0, 1)
    )
    assert first == again != other
