from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unisono.clustering.importance import log_importance, macro_probabilities, mean_losses
from unisono.clustering.kmeans import kmeans
from unisono.core.addressing import parse
from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.payload import Payload
from unisono.methods.selection import SelectionConfig, choose_reserve, draw_for, look_at_candidates, receivers_losses

SAMPLES = torch.randint(0, 256, (60, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
DATA = ClientData(SAMPLES, torch.arange(10, 50))
NETWORKS = Payload({"encoder": {"weight": torch.randn(16, 3, generator=torch.Generator().manual_seed(1))}})


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Embedder:
    """A linear embedding that counts the samples it is given."""

    def __init__(self) -> None:
        self.num_samples = 0

    def __call__(self, networks: Payload, samples: Tensor) -> Tensor:
        self.num_samples += len(samples)
        return samples.flatten(1).float() / 255 @ networks.groups["encoder"]["weight"]

    def pair(self, networks: Payload, samples: Tensor) -> tuple[Tensor, Tensor]:
        return self(networks, samples), self(networks, samples.flip(-1))


def test_reserve_of_clusters_is_nearest_to_their_means() -> None:
    config = SelectionConfig(num_reserve=6)
    chosen = choose_reserve(config, DATA, rng())
    points = DATA.batch(torch.arange(40)).flatten(1)
    clusters = kmeans(points, 6, rng())
    assert len(chosen.unique()) == len(chosen) == 6
    assert clusters.assignment[chosen].sort().values.tolist() == list(range(6))
    for position in chosen:
        rivals = clusters.assignment == clusters.assignment[position]
        distances = (points - clusters.centroids[clusters.assignment[position]]).square().sum(dim=1)
        assert distances[position] <= distances[rivals].min() + 1e-5


def test_random_reserve_is_a_uniform_draw() -> None:
    config = SelectionConfig(num_reserve=10, reserve="random")
    counts = torch.bincount(torch.cat([choose_reserve(config, DATA, rng(seed)) for seed in range(400)]), minlength=40)
    assert int(counts.sum()) == 4000
    assert 60 < int(counts.min()) <= int(counts.max()) < 140
    assert len(choose_reserve(config, DATA, rng()).unique()) == 10


@pytest.mark.parametrize("reserve", ["kmeans", "random"])
def test_reserve_of_a_small_device_is_all_it_has(reserve: str) -> None:
    config = SelectionConfig(num_reserve=500, reserve=reserve)  # type: ignore[arg-type]
    assert sorted(choose_reserve(config, DATA, rng()).tolist()) == list(range(40))


def look(config: SelectionConfig, reserves: dict[int, Tensor]) -> tuple[dict[str, Tensor], Embedder]:
    embed = Embedder()
    return look_at_candidates(config, embed, embed.pair, NETWORKS, reserves, DATA, Context(0, 3, "offer", 5)), embed


def test_candidates_are_embedded_once_for_all_neighbors() -> None:
    config = SelectionConfig(num_candidates=15)
    table, embed = look(config, {1: SAMPLES[:4], 2: SAMPLES[50:56]})
    assert embed.num_samples == 15 + 2 * 4 + 2 * 6
    assert len(table["positions"].unique()) == 15
    assert int(table["positions"].max()) < len(DATA)
    assert {parse(name).receiver for name in table} == {None, 1, 2}


def test_table_is_that_of_the_formulas() -> None:
    config = SelectionConfig(num_candidates=15, num_clusters=3, margin=0.7)
    table, embed = look(config, {1: SAMPLES[:8]})
    candidates = embed(NETWORKS, SAMPLES[10 + table["positions"]])
    anchors, positives = embed.pair(NETWORKS, SAMPLES[:8])
    clusters = kmeans(torch.cat([candidates, anchors]), 3, Context(0, 3, "offer", 5).rng("clusters for 1")).assignment
    assert torch.equal(table[">1.clusters"], clusters[:15])
    assert torch.equal(table[">1.macro"], macro_probabilities(clusters[:15], clusters[15:], 3))
    torch.testing.assert_close(table[">1.losses"], mean_losses(anchors, positives, candidates, 0.7))


def test_draws_follow_the_importance() -> None:
    config = SelectionConfig(num_candidates=15, num_clusters=2, points_per_pull=1, importance_temperature=(1.0, 3.0))
    table, _ = look(config, {1: SAMPLES[:8]})
    expected = log_importance(table[">1.losses"], table[">1.clusters"], table[">1.macro"], 1.0 + 2.0 * 0.25).exp()
    num_draws = 3000
    drawn = torch.cat([draw_for(config, table, 1, None, 0.25, rng(seed)) for seed in range(num_draws)])
    frequency = torch.bincount(drawn, minlength=len(DATA))[table["positions"]] / num_draws
    assert bool(((frequency - expected).abs() < 0.03).all())
    assert float((expected - 1 / 15).abs().max()) > 0.05, "else a uniform draw would pass"


def test_draws_for_an_unknown_neighbor_are_uniform_and_not_repeated() -> None:
    config = SelectionConfig(num_candidates=15, points_per_pull=5)
    table, _ = look(config, {})
    drawn = [draw_for(config, table, 9, None, 0.0, rng(seed)) for seed in range(900)]
    assert all(len(positions.unique()) == 5 for positions in drawn)
    frequency = torch.bincount(torch.cat(drawn), minlength=len(DATA))[table["positions"]] / 900
    assert bool(((frequency - 1 / 3).abs() < 0.08).all())


def test_losses_of_the_receiver_replace_those_of_the_table() -> None:
    config = SelectionConfig(num_candidates=15, points_per_pull=1, num_clusters=1, importance_temperature=(50.0, 50.0))
    table, embed = look(config, {1: SAMPLES[:8]})
    losses = torch.zeros(15)
    losses[4] = 1.0
    assert draw_for(config, table, 1, losses, 0.0, rng()).tolist() == [int(table["positions"][4])]
    theirs = Payload({"encoder": {"weight": torch.randn(16, 3, generator=rng(9))}})
    candidates = SAMPLES[10 + table["positions"]]
    found = receivers_losses(config, embed, embed.pair, theirs, SAMPLES[:8], candidates)
    torch.testing.assert_close(found, mean_losses(*embed.pair(theirs, SAMPLES[:8]), embed(theirs, candidates), config.margin))
    assert not torch.allclose(found, table[">1.losses"])
