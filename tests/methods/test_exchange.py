"""Exchange between clients: who gets which point, when networks go up, and what stays with a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unisono.core.addressing import by_sender
from unisono.core.client_data import ClientData
from unisono.core.config import merge
from unisono.core.context import Context
from unisono.core.errors import MethodError, UserError
from unisono.core.payload import Payload, Reveals, Update
from unisono.federation.declared import ConsentConfig, check_consent
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.methods.cfcl import CFCL
from unisono.methods.exchange import DataExchange
from unisono.methods.training_loop import TrainingConfig, batches, train_locally
from unisono.models.nets import load_state
from unisono.testing.tiny import SIZES, TinyFederation, same_bits, tiny_clients, tiny_config, tiny_method

SMALL: dict[str, Any] = {
    "method": {"num_reserve": 3, "num_candidates": 6, "points_per_pull": 2, "aggregation_steps": 4},
    "model": {"backbone": "cfcl-cnn"},
    "training": {"local_steps": 2},
    "federation": {"rounds": 5},
    "cohort": {"size": len(SIZES)},
    "graph": {"topology": "ring"},
}
"""Six clients on a ring; networks go up after rounds 1, 3 and 4."""
RING = {client: {(client - 1) % 6, (client + 1) % 6} for client in range(6)}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"selection": "uniform"},
    {"importance_model": "local"},
    {"reserve": "random"},
    {"buffer": "unlimited"},
    {"loss": "simclr"},
    {"negatives": "received"},
    {"pull_steps": 4, "aggregation_steps": 6, "pull_at_start": False},
]


class Turn:
    """One client update: what came in, what went out."""

    def __init__(self, ctx: Context, received: Payload, local: Payload, update: Update, new_local: Payload) -> None:
        self.round, self.phase, self.client_id = ctx.round, ctx.phase, ctx.client_id
        self.received, self.local, self.update, self.new_local = received, local, update, new_local


class Watched(TinyFederation):
    """A federation in this process whose every turn is kept."""

    def __init__(self, over: dict[str, Any] | None = None, **arguments: Any) -> None:
        super().__init__("cfcl", over=merge(SMALL, over or {}), **arguments)
        self.turns: list[Turn] = []
        self.records: list[RoundRecord] = []
        step = self.method.client_step

        def watched(nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context) -> Any:
            update, new_local = step(nets, received, local, data, ctx)
            self.turns.append(Turn(ctx, received, local, update, new_local))
            return update, new_local

        self.method.client_step = watched  # type: ignore[method-assign]
        keeper = Callback()
        keeper.on_round_end = lambda state, record: self.records.append(record)  # type: ignore[method-assign]
        self.keeper = keeper

    def run(
        self, state: ServerState | None = None, until: int | None = None, callbacks: Sequence[Callback] = ()
    ) -> ServerState:
        return super().run(state, until, [self.keeper, *callbacks])

    def phase(self, name: str, round: int | None = None) -> list[Turn]:
        return [turn for turn in self.turns if turn.phase == name and round in (None, turn.round)]


def points_in(payload: Payload) -> list[Tensor]:
    """All samples in a payload, whatever they are called: tensors with the shape and type of samples."""
    return [point for _, tensor in payload.tensors() if tensor.dtype == torch.uint8 and tensor.dim() == 4 for point in tensor]


def owner_of(point: Tensor, watched: Watched) -> int:
    samples = watched.clients.samples
    row = int((samples == point).flatten(1).all(dim=1).nonzero())
    return next(client for client in range(6) if row in watched.clients.client_data(client, torch.device("cpu")).indices)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_no_point_travels_where_there_is_no_edge(variant: dict[str, Any]) -> None:
    watched = Watched({"method": variant})
    watched.run()
    num_moved = 0
    for turn in watched.turns:
        for point in points_in(turn.update.payload):
            assert owner_of(point, watched) == turn.client_id, "a client sends its own points only"
        for point in [*points_in(turn.received), *points_in(turn.new_local)]:
            assert owner_of(point, watched) in RING[turn.client_id], "and holds those of its neighbours only"
            num_moved += 1
    assert num_moved > 0


def test_misdirected_mail_is_not_delivered() -> None:
    watched = Watched()
    offers = {"0>3.points": torch.zeros(1, 1, 8, 8, dtype=torch.uint8), "2>3.points": torch.ones(1, 1, 8, 8, dtype=torch.uint8)}
    server = watched.federation.initial_state().server.with_groups(offers=offers, reserve={"0>.points": offers["0>3.points"]})
    delivered = watched.method.send_to_client(server, Context(0, 0, "train", 3))
    assert {group: list(tensors) for group, tensors in delivered.groups.items()} == {"offers": ["2>3.points"]}
    assert watched.method.send_to_client(server, Context(0, 0, "offer", 3)) == Payload()


def test_selection_none_exchanges_nothing_and_needs_no_consent() -> None:
    watched = Watched({"method": {"selection": "none"}})
    watched.run()
    assert {turn.phase for turn in watched.turns} == {"train"}
    assert not any(points_in(turn.update.payload) or points_in(turn.received) for turn in watched.turns)
    check_consent(watched.method.shares, ConsentConfig())


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_refused_without_consent(variant: dict[str, Any]) -> None:
    method = Watched({"method": variant}).method
    with pytest.raises(UserError, match=r"set consent\.share_data = true"):
        check_consent(method.shares, ConsentConfig(allow_raw_representations=True))
    check_consent(method.shares, ConsentConfig(share_data=True))
    assert method.shares["offers"].reveals is Reveals.DATA


def test_networks_go_up_at_the_end_of_intervals_alone() -> None:
    watched = Watched()
    state = watched.run()
    sent = {turn.round for turn in watched.phase("train") if "encoder" in turn.update.payload.groups}
    assert sent == {1, 3, 4}, "every 4 steps of 2 per round, and after the last round"
    got = {(turn.round, turn.phase) for turn in watched.turns if "encoder" in turn.received.groups}
    assert got == {(0, "offer"), (1, "train"), (2, "offer"), (3, "train"), (4, "offer"), (4, "train")}
    assert state.server.scalars["steps"] == 10


def test_every_interval_begins_with_the_global_networks() -> None:
    watched = Watched()
    state = watched.run(until=2)
    for turn in watched.phase("train", 1):
        previous = next(t for t in watched.phase("train", 0) if t.client_id == turn.client_id)
        assert torch.equal(
            turn.local.groups["encoder"]["trunk.maps.0.weight"], previous.new_local.groups["encoder"]["trunk.maps.0.weight"]
        )
        assert "encoder" not in turn.new_local.groups
        assert "optimizer" not in turn.new_local.groups
    watched.turns.clear()
    watched.run(state, until=3)
    expected = state.server.groups["encoder"]
    for turn in watched.phase("train", 2):
        assert all(torch.equal(turn.local.groups["encoder"][name], expected[name]) for name in expected)


def test_rounds_of_an_interval_are_one_training() -> None:
    """Two rounds of 2 steps with the optimiser's memory give what Adam gives in 4 steps on the same batches."""
    watched = Watched({"method": {"selection": "none"}, "federation": {"rounds": 2}})
    state = watched.run()
    method = watched.method
    assert isinstance(method, DataExchange)
    nets = method.build_networks()
    means: dict[str, Tensor] = {}
    total = 0.0
    for client, size in enumerate(SIZES):
        load_state(nets["encoder"], watched.federation.initial_state().server.groups["encoder"])
        optimizer = torch.optim.Adam(nets.parameters(), lr=method.training.learning_rate, fused=True)
        data = watched.clients.client_data(client, torch.device("cpu"))
        for round in (0, 1):
            ctx = Context(0, round, "train", client)
            views = ctx.rng("views")
            for batch in batches(data, method.training, ctx.rng("order")):
                if len(batch) >= 2:
                    optimizer.zero_grad()
                    method.loss(nets, batch, views)["loss"].backward()
                    optimizer.step()
        total += size
        for name, parameter in nets["encoder"].named_parameters():
            means[name] = means.get(name, torch.zeros_like(parameter)) + size * parameter.detach()
    for name, sums in means.items():
        torch.testing.assert_close(state.server.groups["encoder"][name], sums / total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("restart", [True, False])
def test_optimizer_forgets_at_aggregations_unless_told_to_keep(restart: bool) -> None:
    watched = Watched({"method": {"restart_optimizer": restart}})
    watched.run(until=3)
    counts = {
        turn.round: float(turn.new_local.groups["optimizer"]["encoder.trunk.maps.0.bias#step"])
        for turn in watched.phase("train")
        if turn.client_id == 0 and "optimizer" in turn.new_local.groups
    }
    assert counts == ({0: 2.0, 2: 2.0} if restart else {0: 2.0, 1: 4.0, 2: 6.0})


def test_weight_is_the_mean_size_of_the_data_since_the_last_aggregation() -> None:
    watched = Watched({"method": {"buffer": "unlimited"}})
    watched.run(until=2)
    for turn in watched.phase("train", 1):
        sizes = [
            SIZES[turn.client_id] + len(other.new_local.groups["buffer"]["points"])
            for other in watched.phase("train")
            if other.client_id == turn.client_id
        ]
        assert turn.update.weight == pytest.approx(sum(sizes) / 2)


def test_buffer_holds_the_last_pull_or_all_of_them() -> None:
    last, unlimited = Watched(), Watched({"method": {"buffer": "unlimited"}})
    for watched in (last, unlimited):
        watched.run()
    for client in range(6):
        expected = sum(min(2, SIZES[neighbor]) for neighbor in RING[client])
        ends = [turn.new_local.groups["buffer"] for turn in last.phase("train") if turn.client_id == client]
        assert [len(buffer["points"]) for buffer in ends] == [expected] * 5
        grown = [
            len(turn.new_local.groups["buffer"]["points"]) for turn in unlimited.phase("train") if turn.client_id == client
        ]
        assert grown == sorted(grown)
        assert grown[-1] <= sum(SIZES[neighbor] for neighbor in RING[client])
    buffers = [turn.new_local.groups["buffer"] for turn in unlimited.phase("train", 4)]
    assert max(len(buffer["points"]) for buffer in buffers) > 4
    for buffer in buffers:
        pairs = list(zip(buffer["senders"].tolist(), buffer["rows"].tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        assert torch.equal(buffer["points"], unlimited.clients.samples[buffer["rows"]])


def test_reserves_are_pushed_once_and_kept() -> None:
    watched = Watched()
    watched.run()
    assert {turn.round for turn in watched.phase("push")} == {0}
    sizes = {turn.client_id: len(turn.update.payload.groups["reserve"]["points"]) for turn in watched.phase("push")}
    assert sizes == {client: min(3, size) for client, size in enumerate(SIZES)}
    assert {turn.round for turn in watched.turns if "reserves" in turn.received.groups} == {0}
    for turn in watched.phase("train", 4):
        assert set(by_sender(turn.new_local.groups["reserves"])) == RING[turn.client_id]


def test_tables_are_made_when_global_networks_come() -> None:
    watched = Watched()
    watched.run(until=4)
    for client in range(6):
        tables = [turn.new_local.groups["candidates"] for turn in watched.phase("offer") if turn.client_id == client]
        assert [tables[0] is tables[1], tables[1] is tables[2], tables[2] is tables[3]] == [True, False, True]


def test_uniform_pushes_nothing_and_draws_from_all_points() -> None:
    watched = Watched({"method": {"selection": "uniform"}})
    watched.run()
    assert not watched.phase("push")
    assert "reserve" not in watched.method.shares
    rows = {
        int(row)
        for turn in watched.phase("offer")
        if turn.client_id == 3
        for row in turn.update.payload.groups["offers"][">4.rows"]
    }
    assert len(rows) > 4, "more than one draw of 2 points, from more than 6 candidates in the long run"


def test_local_importance_sends_networks_to_neighbors_within_intervals() -> None:
    watched = Watched({"method": {"importance_model": "local"}})
    watched.run()
    assert {turn.round for turn in watched.phase("train") if "local_networks" in turn.update.payload.groups} == {0, 2}
    for turn in watched.phase("offer"):
        names = set(by_sender(turn.received.groups.get("networks", {})))
        assert names == (RING[turn.client_id] if turn.round in (1, 3) else set())
    mine = next(turn for turn in watched.phase("train", 0) if turn.client_id == 1)
    theirs = next(turn for turn in watched.phase("offer", 1) if turn.client_id == 2)
    sent, got = mine.new_local.groups["encoder"], by_sender(theirs.received.groups["networks"])[1]
    assert all(torch.equal(got[f"encoder/{name}"], sent[name]) for name in sent)


def test_local_importance_draws_other_points_than_global() -> None:
    found = []
    for model in ("global", "local"):
        sharp = {"importance_model": model, "importance_temperature": [500.0, 500.0], "points_per_pull": 1}
        watched = Watched({"method": sharp, "training": {"learning_rate": 0.05}})
        watched.run(until=2)
        found.append([turn.update.payload.groups["offers"] for turn in watched.phase("offer", 1)])
    assert any(not torch.equal(a[name], b[name]) for a, b in zip(*found, strict=True) for name in a)


def test_server_keeps_no_points_between_rounds() -> None:
    for variant in VARIANTS:
        for until in (1, 3):
            assert points_in(Watched({"method": variant}).run(until=until).server) == []


def test_ledger_and_delay_by_hand() -> None:
    """8 x 8 pixels of 8 bits at 1000 bits/s: 0.512 s a point. Clients hold 9, 7, 1, 12, 4, 2 points."""
    delay = {"uplink_rate": 1e6, "neighbor_rate": 1000.0}
    watched = Watched({"method": {"delay": delay}})
    first = watched.run(until=1)
    ledger = first.server.groups["ledger"]
    assert len(ledger["senders"]) == 12
    pushed = dict(zip(ledger["senders"].tolist(), ledger["pushed"].tolist(), strict=True))
    assert pushed == {client: min(3, size) for client, size in enumerate(SIZES)}
    assert ledger["pulled"].tolist() == [min(2, SIZES[sender]) for sender in ledger["senders"].tolist()]
    moved = int(ledger["pushed"].sum() + ledger["pulled"].sum())
    assert watched.records[0].metrics["points_moved"] == moved
    assert watched.records[0].metrics["bytes_moved"] == 64 * moved
    assert first.server.scalars["delay_seconds"] == pytest.approx((3 + 2) * 0.512)
    second = watched.run(first, until=2)
    num_parameters = sum(tensor.numel() for tensor in second.server.groups["encoder"].values())
    expected = (3 + 2 + 2) * 0.512 + num_parameters * 32 / 1e6
    assert second.server.scalars["delay_seconds"] == pytest.approx(expected)
    assert watched.records[1].metrics["points_moved"] == int(ledger["pulled"].sum())


def test_local_importance_pays_for_the_networks_it_sends() -> None:
    delay = {"neighbor_rate": 1000.0}
    seconds = []
    for model in ("global", "local"):
        state = Watched({"method": {"delay": delay, "importance_model": model}}).run(until=2)
        seconds.append(float(state.server.scalars["delay_seconds"]))
        num_parameters = sum(tensor.numel() for tensor in state.server.groups["encoder"].values())
    assert seconds[1] - seconds[0] == pytest.approx(num_parameters * 32 / 1000)


def test_who_was_away_at_the_start_of_an_interval_waits() -> None:
    watched = Watched({"cohort": {"size": 3}, "method": {"aggregation_steps": 6}, "federation": {"rounds": 6}})
    watched.run()
    present = {round: {turn.client_id for turn in watched.phase("offer", round)} for round in range(6)}
    assert present[0] == set(range(6)), "all get the reserves"
    for turn in watched.phase("train", 5):
        assert ("encoder" in turn.update.payload.groups) == (turn.client_id in present[3])
    assert any(turn.client_id not in present[3] for turn in watched.phase("train", 5))


def test_lonely_devices_train_on_their_own() -> None:
    watched = Watched({"graph": {"topology": "edges", "edges": [[0, 1]]}})
    watched.run(until=1)
    sizes = {turn.client_id: len(turn.new_local.groups["buffer"]["points"]) for turn in watched.phase("train")}
    assert sizes == {0: 2, 1: 2, 2: 0, 3: 0, 4: 0, 5: 0}


@pytest.mark.parametrize("variant", VARIANTS[2:], ids=str)
def test_same_bits_for_any_number_of_workers(variant: dict[str, Any]) -> None:
    over = merge(SMALL, {"method": variant})
    alone = TinyFederation("cfcl", over=over).run()
    assert same_bits(TinyFederation("cfcl", workers=2, over=over).run(), alone)


def test_proximal_term_remembers_the_global_networks() -> None:
    watched = Watched({"training": {"proximal_weight": 0.1}})
    start = watched.federation.initial_state()
    watched.run(start, until=2)
    begun = start.server.groups["encoder"]["trunk.linear.0.weight"]
    for turn in watched.phase("train", 1):
        assert torch.equal(turn.local.groups["anchor"]["encoder.trunk.linear.0.weight"], begun)
        assert not torch.equal(turn.local.groups["encoder"]["trunk.linear.0.weight"], begun)


def test_proximal_term_pulls_towards_the_anchor() -> None:
    """w - rate x weight x (w - anchor) is the anchor where rate x weight = 1 and the loss is flat."""
    parameter, anchor = nn.Parameter(torch.tensor([5.0, -3.0])), torch.tensor([1.0, 2.0])
    training = TrainingConfig(local_steps=1, momentum=0.0, weight_decay=0.0, proximal_weight=10.0)
    data = ClientData(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4))
    train_locally(
        [parameter],
        lambda batch, rng: {"loss": 0 * parameter.sum()},
        data,
        training,
        Context(0),
        learning_rate=0.1,
        anchor=[anchor],
    )
    torch.testing.assert_close(parameter.detach(), anchor)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"method": {"aggregation_steps": 5}}, "method.aggregation_steps must be a multiple of training.local_steps, 2, got 5"),
        ({"method": {"pull_steps": 3}}, "method.pull_steps must be a multiple of training.local_steps, 2, got 3"),
        ({"method": {"pull_steps": 20, "pull_at_start": False}}, "the first pull after 20 steps, and the run has 10"),
        ({"method": {"margin": -1.0}}, "method.margin must be"),
        ({"method": {"delay": {"uplink_rate": 0.0}}}, "method.delay.uplink_rate must be"),
        ({"graph": {"topology": "edges", "edges": [[0, 9]]}}, "graph.edges must be pairs"),
    ],
)
def test_mistakes_are_explained(over: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_method(tiny_config("cfcl", merge(SMALL, over))).init_server(Context(0))


def test_labels_never_reach_clients() -> None:
    assert tiny_method(tiny_config("cfcl", SMALL)).needs_labels is False
    assert tiny_clients(labels=False).labels is None


class Personal(CFCL):
    """Keeps a network for itself, which the exchange has no place for."""

    personal_networks = ("projector",)

    @property
    def shared_networks(self) -> tuple[str, ...]:
        return ("encoder",)


def test_all_networks_are_shared() -> None:
    method = Watched({"method": {"loss": "simclr"}}).method
    personal = Personal(method.config, method.info)
    with pytest.raises(MethodError, match="Personal: clients that exchange data share all networks, and 'projector' has"):
        personal.check_networks(personal.build_networks())
