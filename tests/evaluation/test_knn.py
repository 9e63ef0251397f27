import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.evaluation import knn
from unisono.evaluation.knn import fitting_neighbors, knn_probe


def naive(train_x, train_y, test_x, test_y, k, temperature) -> float:
    right = 0
    for x, y in zip(test_x.double(), test_y.tolist(), strict=True):
        near = []
        for other, label in zip(train_x.double(), train_y.tolist(), strict=True):
            near.append((float(x @ other / (x.norm() * other.norm())), label))
        votes: dict[int, float] = {}
        for similarity, label in sorted(near, reverse=True)[:k]:
            votes[label] = votes.get(label, 0) + math.exp(similarity / temperature)
        right += max(votes, key=votes.__getitem__) == y
    return right / len(test_y)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 40), temperature=st.sampled_from([0.07, 0.1, 1.0]))
def test_agrees_with_a_double_loop(seed, k, temperature):
    generator = torch.Generator().manual_seed(seed)
    train_x, test_x = torch.randn(30, 5, generator=generator), torch.randn(20, 5, generator=generator)
    train_y, test_y = torch.randint(4, (30,), generator=generator), torch.randint(4, (20,), generator=generator)
    expected = naive(train_x, train_y, test_x, test_y, k, temperature)
    assert knn_probe(train_x, train_y, test_x, test_y, k, temperature) == expected


def test_chunks_do_not_matter(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=generator), torch.randint(3, (60,), generator=generator)
    whole = knn_probe(x[:40], y[:40], x[40:], y[40:], k=7)
    monkeypatch.setattr(knn, "CHUNK_ENTRIES", 100)
    assert knn_probe(x[:40], y[:40], x[40:], y[40:], k=7) == whole


def test_separable_and_random():
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(4, (1200,), generator=generator)
    x = torch.eye(4)[y] * 3 + 0.1 * torch.randn(1200, 4, generator=generator)
    assert knn_probe(x[:600], y[:600], x[600:], y[600:]) == 1.0
    shuffled = y[torch.randperm(1200, generator=generator)]
    assert abs(knn_probe(x[:600], shuffled[:600], x[600:], shuffled[600:]) - 0.25) < 0.07


def test_only_the_direction_counts():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=generator), torch.randint(3, (60,), generator=generator)
    factor = torch.rand(60, 1, generator=generator) + 0.5
    assert knn_probe(x[:40], y[:40], x[40:], y[40:], k=5) == knn_probe(
        factor[:40] * x[:40], y[:40], factor[40:] * x[40:], y[40:], k=5
    )


def test_the_weights_let_one_near_neighbour_beat_two_far_ones():
    train_x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    train_y, test_x = torch.tensor([0, 1, 1]), torch.tensor([[1.0, 0.9]])
    assert knn_probe(train_x, train_y, test_x, torch.tensor([0]), k=3, temperature=0.01) == 1.0
    assert knn_probe(train_x, train_y, test_x, torch.tensor([1]), k=3, temperature=10.0) == 1.0


@pytest.mark.parametrize("temperature", [1e-4, 1e4])
def test_no_temperature_overflows(temperature):
    x, y = torch.eye(3), torch.arange(3)
    assert knn_probe(x, y, x, y, k=3, temperature=temperature) == 1.0


def test_labels_may_have_gaps_and_be_unknown():
    x = torch.eye(3)
    assert knn_probe(x[:2], torch.tensor([5, 90]), x, torch.tensor([5, 90, 7]), k=1) == pytest.approx(2 / 3)


@pytest.mark.parametrize(("num_samples", "k"), [(50_000, 200), (100_000, 200), (10_000, 40), (1_000, 10), (3, 10)])
def test_neighbours_are_the_share_of_the_paper(num_samples, k):
    assert fitting_neighbors(num_samples) == k


def test_unset_neighbours_fit_the_samples():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(400, 5, generator=generator), torch.randint(3, (400,), generator=generator)
    assert knn_probe(x[:300], y[:300], x[300:], y[300:]) == knn_probe(x[:300], y[:300], x[300:], y[300:], k=10)
    assert knn_probe(x[:3], y[:3], x[300:], y[300:]) == knn_probe(x[:3], y[:3], x[300:], y[300:], k=3)
