"""The round loop: order of phases, cohorts, failures, retries, and what callbacks are told."""

import json
from collections.abc import Callable, Sequence

import pytest
import torch

from tests.federation.counting import Counting, Diary, InPlace, make_federation
from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.method import Phase
from unisono.core.payload import Payload
from unisono.core.wire import to_bytes
from unisono.federation.aggregate import AggregationConfig
from unisono.federation.cohort import CohortConfig, draw_cohort, reachable_clients
from unisono.federation.loop import FederationConfig, LoopConfig, RoundLoop, ServerState
from unisono.federation.postprocess import CompressionConfig, PrivacyConfig
from unisono.federation.server_optimizers import ServerOptimizerConfig

SIZES = (3, 1, 2, 4)
TWO_PHASES = (Phase("offer"), Phase("train"))


def number(payload: Payload) -> list[float]:
    return payload.groups["number"]["x"].tolist()  # type: ignore[no-any-return]


def federation_of(
    phases: Sequence[Phase] = (Phase("train"),),
    fails: Callable[[int, int], bool] = lambda exchange, client: False,
    sizes: Sequence[int] = SIZES,
    route: bool = False,
    **sections: object,
) -> tuple[RoundLoop, InPlace]:
    return make_federation(Counting.make(phases, len(sizes), route), sizes, LoopConfig(**sections), fails)  # type: ignore[arg-type]


def tolerant(quorum: float = 0.5, retries: int = 3) -> FederationConfig:
    return FederationConfig(strict=False, quorum=quorum, retries=retries)


def test_rounds_by_hand() -> None:
    """Each round adds the mean of client_id + 1 with weights 3, 1, 2, 4: (3 * 1 + 1 * 2 + 2 * 3 + 4 * 4) / 10 = 2.7."""
    federation, _ = federation_of()
    diary = Diary()
    state = federation.run(federation.initial_state(), [diary], until=2)
    assert state.round == 2
    assert number(state.server) == pytest.approx([5.4, 5.4])
    assert state.server.scalars == {"steps": 2, "last": "1/train", "turns": "[2, 2, 2, 2]"}
    assert diary.lines[:6] == ["start 0 4", "train 0", "train 1", "train 2", "train 3", "end 0"]
    assert diary.records[1].metrics == {"own": pytest.approx((0 * 3 + 1 * 1 + 2 * 2 + 3 * 4) / 10)}
    assert [state.round for state in diary.states] == [1, 2]


def test_the_configs_number_of_rounds_is_run() -> None:
    federation, engine = federation_of(federation=FederationConfig(rounds=3))
    assert federation.run(federation.initial_state()).round == 3
    assert len(engine.asked) == 3


def test_phases_go_in_order_and_each_sees_what_the_last_one_made() -> None:
    federation, engine = federation_of(TWO_PHASES)
    diary = Diary()
    state = federation.run_round(federation.initial_state(), [diary])
    assert [(task.ctx.round, task.ctx.phase) for task in engine.asked] == [(0, "offer"), (0, "train")]
    assert number(engine.asked[1].broadcast) == pytest.approx([2.7, 2.7])
    assert number(state.server) == pytest.approx([5.4, 5.4])
    assert state.server.scalars["turns"] == "[2, 2, 2, 2]", "local states pass from phase to phase"
    assert diary.lines[0] == "start 0 8"
    assert list(diary.records[0].metrics) == ["offer.own", "own"]
    assert set(diary.records[0].seconds) == {"offer", "train", "round"}


def test_cohorts_are_those_of_the_config() -> None:
    cohort = CohortConfig(size=2)
    federation, engine = federation_of(cohort=cohort)
    federation.run(federation.initial_state(), until=5)
    assert [task.clients for task in engine.asked] == [draw_cohort(cohort, 4, Context(0, round)) for round in range(5)]


def test_a_phase_for_everyone_asks_all_that_can_be_reached() -> None:
    cohort = CohortConfig(size=2, availability="bernoulli", availability_rate=0.6)
    federation, engine = federation_of((Phase("survey", all_clients=True), Phase("train")), sizes=[1] * 20, cohort=cohort)
    federation.run_round(federation.initial_state())
    reachable = reachable_clients(cohort, 20, Context(0, 0)).tolist()
    assert 2 < len(reachable) < 20
    assert engine.asked[0].clients == reachable
    assert engine.asked[1].clients == draw_cohort(cohort, 20, Context(0, 0))


def test_routed_payloads_reach_their_client_alone() -> None:
    federation, engine = federation_of(route=True)
    federation.run_round(federation.initial_state())
    assert {client: int(own.groups["own"]["id"]) for client, own in engine.asked[0].routed.items()} == {0: 0, 1: 1, 2: 2, 3: 3}
    plain, engine = federation_of()
    plain.run_round(plain.initial_state())
    assert engine.asked[0].routed == {}


def test_bytes_are_counted() -> None:
    """Down: two floats, and 8 bytes of a routed id. Up: two floats and one int64. Four clients, two phases."""
    federation, _ = federation_of(TWO_PHASES, route=True)
    diary = Diary()
    federation.run_round(federation.initial_state(), [diary])
    record = diary.records[0]
    assert (record.bytes_down, record.bytes_up) == (2 * 4 * (8 + 8), 2 * 4 * (8 + 8))
    assert (record.num_asked, record.num_answered) == (8, 8)
    assert [(phase, stats.client_id, stats.num_samples) for phase, stats in record.clients] == [
        (phase, client, SIZES[client]) for phase in ("offer", "train") for client in range(4)
    ]
    assert list(record.as_json())[:5] == ["round", "asked", "answered", "bytes_down", "bytes_up"]
    assert json.loads(json.dumps(record.as_json())) == record.as_json()


def test_compressed_updates_count_as_what_crossed_the_wire() -> None:
    """8 bits: two levels and a float step, besides the stack of one int64."""
    federation, _ = federation_of(compression=CompressionConfig(bits=8))
    diary = Diary()
    federation.run_round(federation.initial_state(), [diary])
    assert diary.records[0].bytes_up == 4 * (2 + 4 + 8)


# --- failures


def test_strict_runs_stop_at_the_first_failure_and_tell() -> None:
    federation, _ = federation_of(fails=lambda exchange, client: client >= 2)
    diary = Diary()
    with pytest.raises(ClientError, match="round 1, phase train, client 2: told to fail"):
        federation.run_round(federation.initial_state(), [diary])
    assert [line for line in diary.lines if line.startswith("failure")] == ["failure 2", "failure 3"]
    assert not any(line.startswith("end") for line in diary.lines)


def test_tolerant_runs_leave_failures_out_and_renormalise() -> None:
    """Clients 0, 2 and 3 answer: (3 * 1 + 2 * 3 + 4 * 4) / 9."""
    federation, _ = federation_of(fails=lambda exchange, client: client == 1, federation=tolerant())
    diary = Diary()
    state = federation.run_round(federation.initial_state(), [diary])
    assert number(state.server) == pytest.approx([25 / 9] * 2)
    record = diary.records[0]
    assert (record.num_asked, record.num_answered) == (4, 3)
    assert [failure.client_id for failure in record.failures] == [1]
    assert list(federation.store) == [0, 2, 3], "who failed has no new state"


def test_a_round_below_quorum_is_tried_with_the_next_cohort() -> None:
    cohort = CohortConfig(size=3)
    federation, engine = federation_of(
        fails=lambda exchange, client: exchange < 2, sizes=[1] * 30, federation=tolerant(), cohort=cohort
    )
    diary = Diary()
    state = federation.run_round(federation.initial_state(), [diary])
    expected = [draw_cohort(cohort, 30, Context(0, 0), attempt) for attempt in range(3)]
    assert [task.clients for task in engine.asked] == expected
    assert len({tuple(clients) for clients in expected}) == 3
    assert number(state.server) == pytest.approx([sum(expected[2]) / 3 + 1] * 2)
    assert [line for line in diary.lines if line.startswith(("start", "end"))] == ["start 0 3"] * 3 + ["end 0"]
    assert len([line for line in diary.lines if line.startswith("failure")]) == 6


def test_a_round_that_is_tried_again_starts_from_the_states_it_found() -> None:
    """The first phase of the first attempt succeeds and its second phase fails: nobody's turns may count twice."""
    federation, engine = federation_of(TWO_PHASES, fails=lambda exchange, client: exchange == 3, federation=tolerant())
    state = federation.run_round(federation.initial_state())
    before = number(state.server)
    state = federation.run_round(state)
    assert [task.ctx.phase for task in engine.asked] == ["offer", "train"] * 3
    assert state.server.scalars["turns"] == "[4, 4, 4, 4]"
    assert state.server.scalars["steps"] == 4
    assert number(state.server) == pytest.approx([2 * value for value in before])
    assert all(dict(federation.store.get(client).scalars) == {"turns": 4} for client in range(4))
    assert [federation.store.version(client) for client in range(4)] == [1, 1, 1, 1]


def test_after_the_last_attempt_the_run_stops_with_advice() -> None:
    federation, engine = federation_of(
        TWO_PHASES, fails=lambda exchange, client: exchange % 2 == 1, federation=tolerant(retries=2)
    )
    with pytest.raises(UserError, match=r"Round 1 stayed below the quorum of 50% in 3 attempts.*lower federation\.quorum"):
        federation.run_round(federation.initial_state())
    assert len(engine.asked) == 6
    assert federation.store.get(0) == Payload()


def test_nothing_of_an_aborted_round_leaks_into_the_next() -> None:
    federation, _ = federation_of(TWO_PHASES, fails=lambda exchange, client: exchange == 1)
    with pytest.raises(ClientError):
        federation.run_round(federation.initial_state())
    state = federation.run_round(federation.initial_state())
    assert state.server.scalars["turns"] == "[2, 2, 2, 2]"


@pytest.mark.parametrize(("num_failed", "attempts"), [(11, 1), (12, 2)])
def test_the_quorum_itself_is_enough(num_failed: int, attempts: int) -> None:
    """0.56 of 25 clients are 14; as floats 0.56 * 25 > 14."""
    federation, engine = federation_of(
        fails=lambda exchange, client: exchange == 0 and client < num_failed, sizes=[1] * 25, federation=tolerant(0.56)
    )
    federation.run_round(federation.initial_state())
    assert len(engine.asked) == attempts


def test_a_round_that_reaches_nobody_changes_nothing_and_says_so() -> None:
    cohort = CohortConfig(availability="bernoulli", availability_rate=1e-9)
    federation, _ = federation_of(cohort=cohort, federation=tolerant(retries=0))
    start = federation.initial_state()
    diary = Diary()
    state = federation.run_round(start, [diary])
    assert state.round == 1
    assert to_bytes(state.server) == to_bytes(start.server)
    assert any("nobody was asked" in note for record in diary.records for note in record.notes)


# --- server


def test_the_server_optimiser_stands_between_mean_and_method() -> None:
    """Momentum 0.5, rate 1, constant gradient -2.7: buffers -2.7 and -4.05, so the number is 2.7 and then 6.75."""
    federation, _ = federation_of(server=ServerOptimizerConfig(optimizer="fedavgm", momentum=0.5))
    state = federation.run(federation.initial_state(), until=2)
    assert number(state.server) == pytest.approx([6.75, 6.75])
    assert state.optimizer.groups["number"]["x#momentum_buffer"].tolist() == pytest.approx([-4.05, -4.05])


def test_each_phase_is_optimised_from_where_the_last_one_ended() -> None:
    """Rate 0.5, and every phase's mean is 2.7 ahead of what was sent: 1.35, and then 1.35 + 1.35."""
    federation, _ = federation_of(TWO_PHASES, server=ServerOptimizerConfig(learning_rate=0.5))
    assert number(federation.run_round(federation.initial_state()).server) == pytest.approx([2.7, 2.7])


def test_a_retry_does_not_advance_the_optimiser() -> None:
    section = ServerOptimizerConfig(optimizer="fedavgm", momentum=0.5)
    federation, _ = federation_of(TWO_PHASES, lambda exchange, client: exchange == 1, federation=tolerant(), server=section)
    undisturbed, _ = federation_of(TWO_PHASES, federation=tolerant(), server=section)
    assert torch.equal(
        federation.run_round(federation.initial_state()).optimizer.groups["number"]["x#momentum_buffer"],
        undisturbed.run_round(undisturbed.initial_state()).optimizer.groups["number"]["x#momentum_buffer"],
    )


@pytest.mark.parametrize(("everyone", "divisor"), [(False, 5), (True, 20)])
def test_private_means_divide_by_those_who_were_to_be_asked(everyone: bool, divisor: int) -> None:
    """Every client's update is clipped to norm 1, so the sum over a cohort is at most its size, and its mean at most 1.

    Of the 5 clients of a cohort all answer, or all 20 where everyone is asked: either way the clipped mean has norm 1.
    """
    federation, engine = federation_of(
        (Phase("train", everyone),),
        sizes=[1] * 20,
        cohort=CohortConfig(size=5),
        aggregation=AggregationConfig(weighting="uniform"),
        privacy=PrivacyConfig(clip_norm=1.0, noise_multiplier=1e-9),
    )
    state = federation.run_round(federation.initial_state())
    assert len(engine.asked[0].clients) == divisor
    assert float(state.server.groups["number"]["x"].norm()) == pytest.approx(1.0, abs=1e-5)


def test_the_same_seed_gives_the_same_bits() -> None:
    def end(seed: int) -> torch.Tensor:
        sections = LoopConfig(
            cohort=CohortConfig(size=2),
            aggregation=AggregationConfig(weighting="uniform"),
            privacy=PrivacyConfig(clip_norm=1.0, noise_multiplier=1.0),
            compression=CompressionConfig(bits=8),
        )
        federation, _ = make_federation(Counting.make(), SIZES, sections, seed=seed)
        return federation.run(federation.initial_state(), until=3).server.groups["number"]["x"]

    assert torch.equal(end(1), end(1))
    assert not torch.equal(end(1), end(2))


class Talking(Counting):
    """Offers first while its number is small, and says when it has grown beyond 5."""

    def phases(self, round: int, server: Payload) -> Sequence[Phase]:
        return (Phase("train"),) if number(server)[0] > 5 else TWO_PHASES

    def round_notes(self, before: Payload, after: Payload) -> Sequence[str]:
        return ["beyond 5"] if number(before)[0] <= 5 < number(after)[0] else []


def test_phases_and_notes_follow_from_the_servers_state() -> None:
    federation, engine = make_federation(Talking.make(num_clients=4), SIZES, LoopConfig(), lambda exchange, client: False)
    diary = Diary()
    federation.run(federation.initial_state(), [diary], until=3)
    assert [task.ctx.phase for task in engine.asked] == ["offer", "train", "train", "train"]
    assert [record.notes for record in diary.records] == [["beyond 5"], [], []]


def test_observers_are_told_where_a_run_starts_or_goes_on() -> None:
    started: list[int] = []

    class Start(Diary):
        def on_run_start(self, state: ServerState) -> None:
            started.append(state.round)

    federation, _ = federation_of()
    state = federation.run(federation.initial_state(), [Start()], until=2)
    federation.run(state, [Start()], until=3)
    assert started == [0, 2]
