from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unisono.clustering.importance import (
    compare,
    draw_without_replacement,
    log_importance,
    macro_probabilities,
    mean_losses,
)
from unisono.losses.contrastive import triplet


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_macro_by_hand() -> None:
    """Clusters with 3 of 4, 1 of 3 and 2 of 2 candidates: X = 3/4, 1/3, 1, which sum to 25/12."""
    candidates, reserve = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([0, 1, 1])
    expected = torch.tensor([3 / 4, 1 / 3, 1.0], dtype=torch.float64) / (25 / 12)
    torch.testing.assert_close(macro_probabilities(candidates, reserve, 3), expected)


def test_macro_of_clusters_without_candidates_is_zero() -> None:
    macro = macro_probabilities(torch.tensor([1, 1]), torch.tensor([0, 0, 1]), 3)
    assert macro.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("margin", [0.0, 0.5, 3.0])
def test_mean_losses_are_means_of_the_triplet_loss(margin: float) -> None:
    anchors, positives = torch.randn(2, 6, 3, generator=rng()).unbind()
    candidates = torch.randn(5, 3, generator=rng(1))
    expected = [
        torch.stack([triplet(a, p, candidate, margin) for a, p in zip(anchors, positives, strict=True)]).mean()
        for candidate in candidates
    ]
    torch.testing.assert_close(mean_losses(anchors, positives, candidates, margin), torch.stack(expected))


def naive_importance(losses: list[float], clusters: list[int], macro: list[float], temperature: float) -> list[float]:
    chances = []
    for loss, cluster in zip(losses, clusters, strict=True):
        rivals = sum(math.exp(temperature * other) for other, own in zip(losses, clusters, strict=True) if own == cluster)
        chances.append(math.exp(temperature * loss) / rivals * macro[cluster])
    return chances


@given(seed=st.integers(0, 1000), temperature=st.floats(0, 10), num_candidates=st.integers(1, 20))
@settings(max_examples=40)
def test_importance_naively(seed: int, temperature: float, num_candidates: int) -> None:
    losses = torch.rand(num_candidates, generator=rng(seed))
    clusters = torch.randint(4, (num_candidates,), generator=rng(seed + 1))
    macro = macro_probabilities(clusters, torch.randint(4, (7,), generator=rng(seed + 2)), 4)
    found = log_importance(losses, clusters, macro, temperature).exp()
    expected = naive_importance(losses.tolist(), clusters.tolist(), macro.tolist(), temperature)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert float(found.sum()) == pytest.approx(1)


def test_huge_losses_do_not_overflow() -> None:
    chances = log_importance(torch.tensor([1e4, 1e4 - 1, 5.0]), torch.tensor([0, 0, 1]), torch.tensor([0.5, 0.5]).double(), 10)
    assert chances.tolist() == pytest.approx([math.log(0.5), math.log(0.5) - 10, math.log(0.5)], abs=1e-3)


def test_draws_follow_the_chances_among_those_left() -> None:
    """The chance of a pair is p_i p_j / (1 - p_i) + p_j p_i / (1 - p_j)."""
    chances = [0.6, 0.3, 0.1]
    log_chances = torch.tensor(chances, dtype=torch.float64).log()
    num_draws = 4000
    drawn = [tuple(draw_without_replacement(log_chances, 2, rng(seed)).tolist()) for seed in range(num_draws)]
    for pair in ((0, 1), (0, 2), (1, 2)):
        expected = sum(chances[a] * chances[b] / (1 - chances[a]) for a, b in permutations(pair))
        assert drawn.count(pair) / num_draws == pytest.approx(expected, abs=0.03)


def test_no_point_is_drawn_twice_and_no_more_than_there_are() -> None:
    log_chances = torch.tensor([0.0, -1e6, -2e6])
    assert draw_without_replacement(log_chances, 2, rng()).tolist() == [0, 1]
    assert draw_without_replacement(log_chances, 10, rng()).tolist() == [0, 1, 2]


def clouds() -> tuple[Tensor, Tensor, Tensor]:
    """Candidates near 0 and near 10; the reserve is near 0 only."""
    candidates = torch.cat([torch.zeros(5, 2), torch.full((5, 2), 10.0)]) + 0.1 * torch.randn(10, 2, generator=rng())
    anchors = 0.1 * torch.randn(5, 2, generator=rng(1))
    return candidates, anchors, anchors + 0.1


def test_compare_prefers_what_the_receiver_lacks() -> None:
    """X = 5/10 near 0, 5/5 near 10, so the macro chances are 1/3 and 2/3; only near candidates have a loss."""
    candidates, anchors, positives = clouds()
    compared = compare(candidates, anchors, positives, 2, 1.0, rng())
    assert len(compared["clusters"][:5].unique()) == 1
    assert compared["macro"][compared["clusters"][0]] == pytest.approx(1 / 3)
    assert compared["macro"][compared["clusters"][9]] == pytest.approx(2 / 3)
    assert bool((compared["losses"][:5] > 0.5).all())
    assert compared["losses"][5:].tolist() == [0.0] * 5


def test_compare_with_fewer_points_than_clusters() -> None:
    candidates, anchors, positives = clouds()
    compared = compare(candidates[:1], anchors[:1], positives[:1], 4, 1.0, rng())
    assert compared["macro"].sum() == pytest.approx(1)
