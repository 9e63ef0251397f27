"""Robust means by hand, against naive references, and under attack."""

import itertools
import statistics
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unisono.core.payload import Tensors
from unisono.federation.robust import coordinate_median, krum_selection, trimmed_mean, weighted_mean


def updates_of(*rows: list[float]) -> list[dict[str, Tensor]]:
    return [{"w": torch.tensor(row)} for row in rows]


def random_updates(num_clients: int, seed: int, spread: float = 1.0) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {name: spread * torch.randn(shape, generator=generator) for name, shape in (("w", (2, 3)), ("b", (4,)))}
        for _ in range(num_clients)
    ]


def test_trimmed_mean_by_hand() -> None:
    updates = updates_of([1.0, 50.0], [2.0, 40.0], [3.0, 30.0], [4.0, 20.0], [100.0, -999.0])
    assert trimmed_mean(updates, 0.2)["w"].tolist() == [3.0, 30.0]
    assert trimmed_mean(updates, 0.4)["w"].tolist() == [3.0, 30.0]
    assert trimmed_mean(updates, 0.19)["w"].tolist() == [22.0, pytest.approx(-171.8)]


@pytest.mark.parametrize(("trim", "num_clients", "num_cut"), [(0.29, 100, 29), (0.1, 30, 3), (0.3, 9, 2), (0.49, 2, 0)])
def test_trimmed_mean_cuts_as_many_as_it_says(trim: float, num_clients: int, num_cut: int) -> None:
    """Of some ones among zeros, the mean is 0 exactly if all the ones are cut."""

    def mean_with(num_ones: int) -> float:
        return float(trimmed_mean(updates_of(*[[1.0]] * num_ones, *[[0.0]] * (num_clients - num_ones)), trim)["w"])

    assert mean_with(num_cut) == 0
    assert mean_with(num_cut + 1) > 0


def test_median_by_hand() -> None:
    odd = updates_of([1.0, 9.0], [5.0, -7.0], [1000.0, 0.0])
    assert coordinate_median(odd)["w"].tolist() == [5.0, 0.0]
    assert coordinate_median([*odd, *updates_of([6.0, 1.0])])["w"].tolist() == [5.5, 0.5]
    assert coordinate_median(odd[:1])["w"].tolist() == [1.0, 9.0]


@given(st.integers(1, 9), st.integers(0, 1000), st.integers(0, 49))
@settings(max_examples=50)
def test_against_a_naive_reference(num_clients: int, seed: int, percent: int) -> None:
    updates = random_updates(num_clients, seed)
    medians, means = coordinate_median(updates), trimmed_mean(updates, percent / 100)
    cut = percent * num_clients // 100
    for name in ("w", "b"):
        for place in itertools.product(*map(range, updates[0][name].shape)):
            values = sorted(float(update[name][place]) for update in updates)
            assert float(medians[name][place]) == pytest.approx(statistics.median(values), abs=1e-6)
            kept = values[cut : num_clients - cut]
            assert float(means[name][place]) == pytest.approx(sum(kept) / len(kept), abs=1e-6)


def naive_krum(updates: list[dict[str, Tensor]], num_byzantine: int) -> list[int]:
    """Blanchard et al.: score(i) = sum of squared distances to the n - f - 2 nearest others; the n - f lowest are kept."""
    scores = []
    for own in updates:
        distances = sorted(
            sum(float(((own[name].double() - other[name].double()) ** 2).sum()) for name in own)
            for other in updates
            if other is not own
        )
        scores.append(sum(distances[: max(1, len(updates) - num_byzantine - 2)]))
    order = sorted(range(len(updates)), key=lambda index: scores[index])
    return sorted(order[: max(1, len(updates) - num_byzantine)])


@given(st.integers(3, 40), st.integers(0, 1000), st.integers(0, 3))
@settings(max_examples=25)
def test_krum_against_a_naive_reference(num_clients: int, seed: int, num_byzantine: int) -> None:
    updates = random_updates(num_clients, seed)
    assert krum_selection(updates, num_byzantine) == naive_krum(updates, num_byzantine)


def test_krum_by_hand() -> None:
    """n = 5, f = 1: squared distances to the 2 nearest add up to 13, 37, 26, 34, 29, so the second is left out.

    With 3 neighbours they would be 62, 101, 75, 134, 54, and the fourth would be.
    """
    assert krum_selection(updates_of([8.0], [0.0], [1.0], [11.0], [6.0]), 1) == [0, 2, 3, 4]


def multi_krum(updates: Sequence[Tensors], weights: Sequence[float], num_byzantine: int) -> Tensors:
    chosen = krum_selection(updates, num_byzantine)
    return weighted_mean([updates[index] for index in chosen], [weights[index] for index in chosen])


def test_multi_krum_rejects_a_far_away_attacker() -> None:
    honest = random_updates(6, seed=1, spread=0.1)
    attacker = {"w": torch.full((2, 3), 1e20), "b": torch.full((4,), -1e20)}
    everyone = [*honest[:2], attacker, *honest[2:]]
    assert krum_selection(everyone, 1) == [0, 1, 3, 4, 5, 6]
    weights = [1.0, 2.0, 1000.0, 3.0, 4.0, 5.0, 6.0]
    result = multi_krum(everyone, weights, 1)
    for name in ("w", "b"):
        expected = sum(weight * update[name] for weight, update in zip([1, 2, 3, 4, 5, 6], honest, strict=True)) / 21
        assert torch.allclose(result[name], torch.as_tensor(expected), atol=1e-6)


def test_multi_krum_of_one_client_and_of_weightless_clients() -> None:
    assert multi_krum(updates_of([3.0]), [2.0], 1)["w"].tolist() == [3.0]
    assert multi_krum(updates_of([1.0], [3.0]), [0.0, 0.0], 0)["w"].tolist() == [2.0]


@pytest.mark.parametrize("scale", [1e3, 1e30])
def test_no_rule_lets_one_of_seven_move_the_result_beyond_the_honest(scale: float) -> None:
    honest = random_updates(6, seed=2)
    attacker = {name: torch.full_like(tensor, scale) for name, tensor in honest[0].items()}
    for result in (
        trimmed_mean([*honest, attacker], 0.2),
        coordinate_median([*honest, attacker]),
        multi_krum([*honest, attacker], [1.0] * 7, 1),
    ):
        for name, tensor in result.items():
            stacked = torch.stack([update[name] for update in honest])
            assert bool((tensor >= stacked.min(dim=0).values - 1e-6).all())
            assert bool((tensor <= stacked.max(dim=0).values + 1e-6).all())
