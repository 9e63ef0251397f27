"""Exchange between clients whose pulls and aggregations have clocks of their own."""

from __future__ import annotations

import torch

from tests.methods.test_exchange import Watched, points_in
from unisono.core.addressing import by_sender
from unisono.core.context import Context
from unisono.methods.exchange import DataExchange
from unisono.methods.selection import look_at_candidates


def phases_by_round(watched: Watched) -> list[set[str]]:
    return [{turn.phase for turn in watched.turns if turn.round == round} for round in range(5)]


def test_pulls_and_aggregations_have_clocks_of_their_own() -> None:
    """Rounds of 2 steps, a pull every 4 from step 4 on, an aggregation every 6: rounds 2 and 4, and after rounds 2 and 4."""
    watched = Watched({"method": {"pull_steps": 4, "pull_at_start": False, "aggregation_steps": 6}})
    watched.run()
    assert phases_by_round(watched) == [{"train"}, {"train"}, {"push", "offer", "train"}, {"train"}, {"offer", "train"}]
    sent = {turn.round for turn in watched.phase("train") if "encoder" in turn.update.payload.groups}
    assert sent == {2, 4}
    held = [
        {len(turn.new_local.groups.get("buffer", {}).get("points", ())) for turn in watched.phase("train", r)} for r in range(5)
    ]
    assert held[0] == held[1] == {0}
    assert held[2] == held[3] == held[4] != {0}, "points stay until the next pull, and over an aggregation"
    buffers = {r: {t.client_id: t.new_local.groups["buffer"]["rows"] for t in watched.phase("train", r)} for r in (2, 3, 4)}
    assert all(torch.equal(buffers[2][client], buffers[3][client]) for client in range(6))
    assert any(not torch.equal(buffers[3][client], buffers[4][client]) for client in range(6))
    moved = [record.metrics.get("points_moved") for record in watched.records]
    assert [value is not None for value in moved] == [False, False, True, False, True]
    assert points_in(watched.federation.initial_state().server) == []


def test_importance_sees_the_last_global_networks_although_training_has_gone_on() -> None:
    """The first pull comes after 4 steps of an interval; what it measures is what the initial networks give."""
    over = {"method": {"pull_steps": 4, "pull_at_start": False, "aggregation_steps": 10}, "training": {"learning_rate": 0.1}}
    watched = Watched(over)
    start = watched.federation.initial_state().server
    watched.run(until=3)
    method = watched.method
    assert isinstance(method, DataExchange)
    nets = method.build_networks()
    for turn in watched.phase("offer", 2):
        ctx = Context(0, 2, "offer", turn.client_id)
        data = watched.clients.client_data(turn.client_id, torch.device("cpu"))
        reserves = {sender: sent["points"] for sender, sent in by_sender(turn.received.groups["reserves"]).items()}
        expected = look_at_candidates(
            method.config,
            lambda networks, samples: method._embed(nets, networks, samples, ctx),  # noqa: B023
            lambda networks, samples: method._embed_pair(nets, networks, samples, ctx),  # noqa: B023
            start,
            reserves,
            data,
            ctx,
        )
        found = turn.new_local.groups["candidates"]
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert "global_networks" in turn.local.groups
        assert "global_networks" not in turn.new_local.groups
        trained, begun = (payload.groups["encoder"]["trunk.maps.0.weight"] for payload in (turn.local, start))
        assert torch.equal(trained, begun) == (len(data) < 2), "a client with one point cannot train before it got others"


def test_local_networks_are_sent_only_where_a_pull_follows() -> None:
    watched = Watched({"method": {"importance_model": "local", "pull_steps": 4, "aggregation_steps": 8}})
    watched.run()
    assert {turn.round for turn in watched.phase("train") if "local_networks" in turn.update.payload.groups} == {1}
    for round in range(5):
        allowed = watched.method.groups_sent(Context(0, round, "train"))
        assert ("local_networks" in allowed) == (round == 1)
    assert watched.method.groups_sent(Context(0, 0, "offer")) == ["offers"]


def test_what_steps_drew_stays_with_the_client() -> None:
    watched = Watched({"method": {"negatives": "received", "pull_steps": 4}})
    watched.run()
    assert not any("drawn" in turn.update.payload.groups for turn in watched.turns)
    for turn in watched.phase("train"):
        drawn = watched.method.drawn_rows(turn.new_local, turn.round)
        own = watched.clients.client_data(turn.client_id, torch.device("cpu")).indices
        received = turn.new_local.groups["buffer"]["rows"]
        assert set(drawn["anchors"].tolist()) <= {*own.tolist(), *received.tolist()}
        assert set(drawn["negatives"].tolist()) <= set(received.tolist()) or len(received) < 2
        assert len(drawn["anchors"]) == len(drawn["negatives"])
        assert watched.method.drawn_rows(turn.new_local, turn.round + 1) == {}
    sizes = [len(turn.new_local.groups["drawn"]["anchors"]) for turn in watched.phase("train") if turn.client_id == 3]
    assert sizes == [8, 16, 8, 16, 8], "batches of 4, 2 a round, since the last pull"
