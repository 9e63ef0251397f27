"""ROWS: every client sends its own row of a tensor that the server holds, and the server gets a mean as of any group."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from tests.federation.counting import Counting, Diary, make_federation
from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.noise import SeededNoise
from unisono.core.payload import Aggregate, Payload, Reduce, Share, Update
from unisono.federation.aggregate import Accumulator, AggregationConfig
from unisono.federation.cohort import CohortConfig
from unisono.federation.declared import check_update
from unisono.federation.loop import LoopConfig
from unisono.federation.postprocess import CompressionConfig, Postprocessor, PrivacyConfig
from unisono.federation.server_optimizers import ServerOptimizerConfig

SHARES = {"net": Share(Reduce.MEAN), "table": Share(Reduce.ROWS)}
SERVER = {"table": {"rows": torch.arange(12.0).view(4, 3), "numbers": torch.zeros(4)}}
UNIFORM = AggregationConfig(weighting="uniform")
CTX = Context(1, 2, "train", 3)


def update(client_id: int, weight: float, row: list[float], number: float = 0.0) -> Update:
    return Update(client_id, weight, Payload({"table": {"rows": torch.tensor(row), "numbers": torch.tensor(number)}}))


def accumulator_of(updates: list[Update], config: AggregationConfig = UNIFORM) -> Accumulator:
    accumulator = Accumulator(SHARES, config)
    for one in updates:
        accumulator.add(one)
    return accumulator


# --- reduction


def test_the_mean_as_if_all_others_had_sent_no_change() -> None:
    """Row 1 is (3, 4, 5); a third of the way to (6, 4, -1) it is (4, 4, 3). Row 2 likewise, rows 0 and 3 stay."""
    updates = [update(1, 5, [6.0, 4.0, -1.0], 3.0), update(2, 1, [9.0, 7.0, 8.0], 6.0), update(0, 9, [0.0, 1.0, 2.0])]
    result = accumulator_of(updates).finish(SERVER)
    assert result.means["table"]["rows"].tolist() == [[0, 1, 2], [4, 4, 3], [7, 7, 8], [9, 10, 11]]
    assert result.means["table"]["numbers"].tolist() == [0, 1, 2, 0]
    assert dict(result.stacks) == {}
    assert SERVER["table"]["rows"].tolist() == torch.arange(12.0).view(4, 3).tolist()


def test_it_is_the_weighted_mean_of_whole_tables() -> None:
    """The same by sending everything: clients of weight 1, 3 and 4."""
    generator = torch.Generator().manual_seed(0)
    rows = {client: torch.randn(3, generator=generator) for client in (0, 2, 3)}
    weights = {0: 1.0, 2: 3.0, 3: 4.0}
    whole = torch.zeros(4, 3)
    for client, row in rows.items():
        table = SERVER["table"]["rows"].clone()
        table[client] = row
        whole += weights[client] / 8 * table
    sent = [update(client, weights[client], row.tolist()) for client, row in rows.items()]
    result = accumulator_of(sent, AggregationConfig()).finish(SERVER)
    torch.testing.assert_close(result.means["table"]["rows"], whole)


@pytest.mark.parametrize("rule", ["trimmed-mean", "median", "multi-krum"])
def test_robust_rules_leave_rows_alone(rule: str) -> None:
    """No two clients send the same row, so there is nothing to compare."""
    config = AggregationConfig(rule=rule, weighting="uniform")  # type: ignore[arg-type]
    updates = [update(client, 1, [float(client)] * 3) for client in range(4)]
    expected = accumulator_of(updates).finish(SERVER).means["table"]["rows"]
    assert torch.equal(accumulator_of(updates, config).finish(SERVER).means["table"]["rows"], expected)


def test_rows_survive_pickling_and_lanes() -> None:
    updates = [update(client, client + 1, [float(client)] * 3, float(client)) for client in range(4)]
    expected = accumulator_of(updates, AggregationConfig()).finish(SERVER).means["table"]
    total = Accumulator(SHARES, AggregationConfig())
    for shard in ([updates[3], updates[1]], [updates[0], updates[2]]):
        total.merge(pickle.loads(pickle.dumps(accumulator_of(shard, AggregationConfig()))))
    result = total.finish(SERVER).means["table"]
    assert all(torch.equal(result[name], expected[name]) for name in expected)
    assert total.counts == {"table": 4}


def test_clients_without_weight_change_nothing() -> None:
    assert "table" not in accumulator_of([update(1, 0, [9.0] * 3)], AggregationConfig()).finish(SERVER).means


# --- what may leave a client


def check(groups: Mapping[str, Mapping[str, Tensor]], client_id: int = 1, received: Payload | None = None) -> None:
    check_update(Update(client_id, 1.0, Payload(groups)), SHARES, Payload(SERVER) if received is None else received)


def test_a_row_may_leave_and_nothing_more() -> None:
    good = {"rows": torch.ones(3), "numbers": torch.tensor(1.0)}
    check({"table": good})
    with pytest.raises(ValueError, match=r"table/rows has shape \(4, 3\), expected \(3,\)"):
        check({"table": {**good, "rows": torch.ones(4, 3)}})
    with pytest.raises(ValueError, match=r"table/rows has shape \(1, 3\), expected \(3,\)"):
        check({"table": {**good, "rows": torch.ones(1, 3)}})
    with pytest.raises(ValueError, match="table/numbers is missing"):
        check({"table": {"rows": torch.ones(3)}})
    with pytest.raises(ValueError, match="table/more is unknown"):
        check({"table": {**good, "more": torch.ones(3)}})
    with pytest.raises(ValueError, match="holds a value that is not finite"):
        check({"table": {**good, "numbers": torch.tensor(float("nan"))}})


def test_a_client_needs_a_row() -> None:
    good = {"rows": torch.ones(3), "numbers": torch.tensor(1.0)}
    with pytest.raises(ValueError, match=r"table/rows of shape \(4, 3\) has no row for client 4"):
        check({"table": good}, client_id=4)
    with pytest.raises(ValueError, match="'table' holds rows of tensors that were not sent to the client"):
        check({"table": good}, received=Payload())


# --- clipping, compression, noise


def test_rows_are_clipped_and_compressed_by_their_difference() -> None:
    table = {"rows": torch.tensor([6.0, 4.0, 1.0]), "numbers": torch.tensor(0.0)}
    sent = Update(1, 1.0, Payload({"net": {"w": torch.tensor([0.0])}, "table": table}))
    received = Payload({"net": {"w": torch.zeros(1)}, **SERVER})
    clipped = Postprocessor(PrivacyConfig(clip_norm=1.0), CompressionConfig(), SHARES)
    encoded, _ = clipped.encode(sent, received, Payload(), CTX)
    # The difference (3, 0, -4) has norm 5.
    assert encoded.payload.groups["table"]["rows"].tolist() == pytest.approx([0.6, 0.0, -0.8])
    decoded = clipped.decode(encoded, received)
    assert decoded.payload.groups["table"]["rows"].tolist() == pytest.approx([3.6, 4.0, 4.2])
    small = Postprocessor(PrivacyConfig(), CompressionConfig(top_k=0.3), SHARES)
    encoded, local = small.encode(sent, received, Payload(), CTX)
    assert small.decode(encoded, received).payload.groups["table"]["rows"].tolist() == pytest.approx([3.0, 4.0, 1.0])
    assert local.groups["postprocess.residual"]["table/rows"].tolist() == [3.0, 0.0, 0.0]


def test_noise_covers_every_row_so_that_it_hides_who_answered() -> None:
    postprocessor = Postprocessor(PrivacyConfig(clip_norm=1.0, noise_multiplier=0.5), CompressionConfig(), SHARES)
    server = {"table": {"rows": torch.zeros(200, 50)}}
    means = accumulator_of([Update(3, 1.0, Payload({"table": {"rows": torch.ones(50)}}))]).finish(server).means
    noisy = postprocessor.add_noise(means, Payload(server), {"table": 1}, 2, SeededNoise(CTX.rng("noise 0")))["table"]["rows"]
    assert float(noisy.std()) == pytest.approx(0.25, rel=0.05)
    assert float(noisy[3].mean()) == pytest.approx(0.5, abs=0.15)
    assert bool((noisy.std(dim=1) > 0.1).all())


# --- a whole federation


class Tabled(Counting):
    """Clients add ``client_id + 1`` to their own row."""

    @property
    def shares(self) -> Mapping[str, Share]:
        return {"table": Share(Reduce.ROWS)}

    def init_server(self, ctx: Context) -> Payload:
        return Payload({"table": {"rows": torch.zeros(self.info.num_clients, 2)}})

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        return server

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        row = received.groups["table"]["rows"][ctx.client_id] + ctx.client_id + 1
        return Update(ctx.client_id, float(len(data)), Payload({"table": {"rows": row}})), local

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        return server.with_groups(**aggregate.means)


def test_every_client_moves_its_own_row_by_its_share() -> None:
    federation, _ = make_federation(Tabled.make(), (5, 5, 5, 5), LoopConfig(aggregation=UNIFORM))
    state = federation.run_round(federation.initial_state())
    assert state.server.groups["table"]["rows"][:, 0].tolist() == [0.25, 0.5, 0.75, 1.0]


def test_only_the_row_is_sent() -> None:
    diary = Diary()
    federation, _ = make_federation(Tabled.make(), (5, 5, 5, 5), LoopConfig())
    federation.run_round(federation.initial_state(), [diary])
    assert [stats.bytes_up for _, stats in diary.records[0].clients] == [8] * 4
    assert [stats.bytes_down for _, stats in diary.records[0].clients] == [32] * 4


def test_the_server_optimiser_acts_on_rows() -> None:
    """Adam on the mean delta of the whole table, zero in the rows of clients that were not asked: Algorithm 1."""
    sections = LoopConfig(
        aggregation=UNIFORM, cohort=CohortConfig(size=2), server=ServerOptimizerConfig(optimizer="fedadam", learning_rate=0.1)
    )
    federation, engine = make_federation(Tabled.make(), (5, 5, 5, 5), sections)
    state = federation.initial_state()
    expected = nn.Parameter(torch.zeros(4, 2))
    adam = torch.optim.Adam([expected], lr=0.1)
    for _ in range(4):
        state = federation.run_round(state)
        expected.grad = torch.zeros(4, 2)
        for client in engine.asked[-1].clients:
            expected.grad[client] = -(client + 1) / 2
        adam.step()
        assert torch.allclose(state.server.groups["table"]["rows"], expected.detach(), atol=1e-6)
    assert len({tuple(task.clients) for task in engine.asked}) > 1
