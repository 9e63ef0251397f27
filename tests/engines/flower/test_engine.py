"""The engine over a grid: the bits of the embedded engine in whatever order answers come, and nothing taken on trust."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from tests.attacks import attack
from tests.engines.flower.grid import InstantGrid
from tests.engines.flower.opening import open_tiny, tiny_terms
from tests.recorder import Recorder
from unisono.core.context import Context
from unisono.core.payload import Payload
from unisono.core.threads import threads
from unisono.engines.flower import simulated_client
from unisono.engines.flower.engine import FlowerEngine, ServerPolicy
from unisono.engines.flower.messages import (
    SERIALISATION,
    answer_content,
    failure_content,
    payload_of,
    payload_record,
    read_request,
    with_checksum,
)
from unisono.engines.flower.pace import Pace
from unisono.engines.flower.simulated_client import SimulatedClient
from unisono.federation.client_store import ClientStateStore
from unisono.federation.cohort import CohortConfig, draw_cohort
from unisono.federation.loop import RoundLoop, ServerState
from unisono.testing.tiny import SIZES, TinyFederation, same_bits

METHOD = "fedema"
TOLERANT = {"federation": {"strict": False, "quorum": 0.5}, "cohort": {"size": 4}}
SPOILED = draw_cohort(CohortConfig(size=4), len(SIZES), Context(0))[1]
"""The client whose answers tests spoil: it is in the first cohort."""
Spoil = Callable[[RecordDict], Any]


class AllHere:
    """Every client on the node of its number."""

    num_clients = len(SIZES)

    def __init__(self, away: Sequence[int] = ()) -> None:
        self._away = away

    def available(self) -> None:
        return None

    def node_of(self, client_id: int) -> int | None:
        return None if client_id in self._away else client_id

    def heard(self, client_id: int, reason: str) -> None:
        pass

    def num_samples(self, client_id: int) -> int:
        return SIZES[client_id]


def run(
    spoil: Spoil = lambda content: content,
    rounds: int = 2,
    away: Sequence[int] = (),
    screen: float = 0.0,
    share: float | None = None,
    now: Callable[[], float] = time.monotonic,
    **policy: Any,
) -> tuple[ServerState, Recorder]:
    handler = SimulatedClient(open_tiny)

    def reply(message: Message) -> RecordDict | Error | None:
        request = read_request(message.content)
        content = answer_content(handler.answer(request))
        return spoil(content) if request.client_id == SPOILED else content

    tiny = TinyFederation(METHOD, over=TOLERANT)
    grid = InstantGrid(reply)
    aggregation = tiny.setup.aggregation.model_copy(update={"screen": screen, "max_weight_share": share})
    held = ServerPolicy(tiny.method, tiny.setup.postprocessor, aggregation, poll=0.0, **policy)
    engine = FlowerEngine(grid, AllHere(away), held, tiny_terms(METHOD, TOLERANT))  # type: ignore[arg-type]
    engine.pace = Pace(held.timeout, now=now)
    federation = RoundLoop(tiny.method, engine, ClientStateStore(), tiny.config.loop, 0)
    recorder = Recorder()
    return federation.run(federation.initial_state(), [recorder], rounds), recorder


def reasons(recorder: Recorder) -> list[str]:
    return [failure.reason for record in recorder.records for failure in record.failures]


def test_same_bits_though_answers_come_in_another_order() -> None:
    state, recorder = run()
    assert same_bits(state, TinyFederation(METHOD, over=TOLERANT).run(until=2))
    assert reasons(recorder) == []


def test_simulated_clients_train_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, turn = set(), simulated_client.run_client

    def noting(*arguments: Any) -> Any:
        seen.add(torch.get_num_threads())
        return turn(*arguments)

    monkeypatch.setattr(simulated_client, "run_client", noting)
    with threads(3):
        run(rounds=1)
    assert seen == {1}


def spoil_update(change: Callable[[Payload], Payload]) -> Spoil:
    def spoil(content: RecordDict) -> RecordDict:
        content["update"] = payload_record(change(payload_of(content, "update")))
        return content

    return spoil


def spoil_answer(**values: Any) -> Spoil:
    def spoil(content: RecordDict) -> RecordDict:
        told = json.loads(str(content.config_records["answer"]["answer"]))
        content["answer"] = ConfigRecord({"answer": json.dumps({**told, **values})})
        with_checksum(content)
        return content

    return spoil


def first_tensor(change: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    def changed(payload: Payload) -> Payload:
        tensors = dict(payload.groups["encoder"])
        name = next(name for name, tensor in tensors.items() if tensor.dim() == 4)
        return payload.with_groups(encoder={**tensors, name: change(tensors[name])})

    return spoil_update(changed)


def raw(data: bytes, kind: str = SERIALISATION) -> Spoil:
    def spoil(content: RecordDict) -> RecordDict:
        content["update"] = ArrayRecord({"payload": Array("uint8", (len(data),), kind, data)})
        return content

    return spoil


HOSTILE: dict[str, tuple[Spoil, str]] = {
    "nan": (first_tensor(lambda tensor: tensor * float("nan")), "not finite"),
    "infinite": (first_tensor(lambda tensor: tensor / 0), "not finite"),
    "shape": (first_tensor(lambda tensor: tensor[:1]), "has shape"),
    "missing tensor": (spoil_update(lambda payload: payload.with_groups(encoder={})), "missing"),
    "other method's group": (spoil_update(lambda payload: payload.with_groups(tricks={"x": torch.ones(1)})), "'tricks'"),
    "scalars": (spoil_update(lambda payload: payload.with_scalars(x=1)), "no scalars"),
    "huge": (first_tensor(lambda tensor: torch.zeros(2**21)), "bytes are more than"),
    "negative weight": (spoil_answer(weight=-1.0), "is negative"),
    "nan weight": (spoil_answer(weight=float("nan")), "the weight is nan"),
    "a weight above its samples": (spoil_answer(weight=1e9), "an update's weight is at most"),
    "nan metric": (spoil_answer(metrics={"loss": float("inf")}), "metric loss is inf"),
    "a metric whose sum is infinite": (spoil_answer(metrics={"loss": 1e308}), "metric loss is 1e+308"),
    "samples without end": (spoil_answer(samples=10**400), "too large"),
    "metrics that are no numbers": (spoil_answer(metrics={"loss": "low"}), "ValueError"),
    "many metrics": (spoil_answer(metrics={f"m{n}": 1.0 for n in range(33)}), "at most 32 metrics"),
    "a metric with a long name": (spoil_answer(metrics={"m" * 65: 1.0}), "at most 64 characters"),
    "somebody else": (spoil_answer(client=0), "client 0's"),
    "not bytes of ours": (raw(b"garbage"), "damaged"),
    "other serialisation": (raw(b"x", "numpy.ndarray"), "serialised"),
    "empty": (lambda content: with_checksum(RecordDict()), "KeyError"),
    "no checksum": (lambda content: RecordDict(), "no checksum of its texts"),
    "flower's error": (lambda content: Error(3, "process died"), "process died"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_left_out_and_said_to_be(name: str) -> None:
    spoil, word = HOSTILE[name]
    state, recorder = run(spoil, rounds=1, max_message_mib=4.0)
    assert recorder.records[0].num_answered == 3
    assert len(reasons(recorder)) == 1
    assert word in reasons(recorder)[0]
    assert recorder.records[0].failures[0].client_id == SPOILED
    without, _ = run(lambda content: Error(1, "away"), rounds=1)
    assert same_bits(state, without)


@attack("B8", "Gives a reason of any length that controls terminals", "300 printable characters are kept")
def test_a_reason_is_short_and_printable() -> None:
    _, recorder = run(lambda content: failure_content("\x1b[2J no\n" + "x" * 10_000, "y" * 10**6), rounds=1)
    (reason,) = reasons(recorder)
    assert reason.startswith("[2J nox")
    assert len(reason) < 300
    assert len(recorder.records[0].failures[0].details) == 20_000


@attack("B4", "Describes a billion samples and claims to weigh as much", "counts for at most ten times the median")
def test_no_client_outweighs_the_others_by_describing_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {client: 10**9 if client == SPOILED else size for client, size in enumerate(SIZES)}
    monkeypatch.setattr(AllHere, "num_samples", lambda self, client: sizes[client])
    middle = median(sizes[client] for client in draw_cohort(CohortConfig(size=4), len(SIZES), Context(0)))
    claimed, recorder = run(spoil_answer(weight=1e9), rounds=1, outlier=10.0)
    expected, _ = run(spoil_answer(weight=10.0 * middle), rounds=1)
    assert same_bits(claimed, expected)
    assert reasons(recorder) == []
    assert not same_bits(claimed, run(spoil_answer(weight=1e9), rounds=1)[0])


def test_no_client_has_more_than_its_share_of_a_mean() -> None:
    """The limit follows what all have described, not what the others have sent."""
    cohort = draw_cohort(CohortConfig(size=4), len(SIZES), Context(0))
    others = sum(SIZES[client] for client in cohort if client != SPOILED)
    limit = 0.1 / 0.9 * others
    assert limit < SIZES[SPOILED]
    held, recorder = run(rounds=1, share=0.1)
    assert reasons(recorder) == []
    assert same_bits(held, run(spoil_answer(weight=limit), rounds=1, share=0.1)[0])
    assert not same_bits(held, run(spoil_answer(weight=limit / 2), rounds=1, share=0.1)[0])


def test_a_straggler_is_given_up_at_the_deadline() -> None:
    clock = itertools.count(step=20)
    state, recorder = run(lambda content: None, rounds=1, timeout=50.0, now=lambda: float(next(clock)))
    assert reasons(recorder) == ["no answer within 50 s"]
    assert same_bits(state, run(lambda content: Error(1, "away"), rounds=1)[0])


@attack(
    "B9", "Takes a request and never answers, in every round", "a short deadline, twice as long each time; rests after three"
)
@pytest.mark.parametrize("before", [1, 0])
def test_a_client_that_hangs_costs_one_short_deadline(before: int) -> None:
    """It, or others if it is new, was fast before, so the server does not give it all the time that there is."""
    answers, clock = iter([True] * before), itertools.count(step=5)
    _, recorder = run(
        lambda content: content if next(answers, False) else None,
        rounds=before + 1,
        timeout=3600.0,
        now=lambda: float(next(clock)),
    )
    (reason,) = reasons(recorder)
    assert 60 <= float(reason.removeprefix("no answer within ").removesuffix(" s")) < 600
    assert [record.num_answered for record in recorder.records] == [4, 3][1 - before :]


def test_a_client_that_is_away_is_not_waited_for() -> None:
    _, recorder = run(rounds=1, away=[SPOILED])
    assert reasons(recorder) == ["it is not connected"]


def test_an_overlong_update_is_left_out_and_named() -> None:
    state, recorder = run(first_tensor(lambda tensor: tensor + 1e4), rounds=1, screen=10.0)
    assert [(failure.client_id, failure.reason.split(", and ")[-1]) for failure in recorder.records[0].failures] == [
        (SPOILED, "aggregation.screen = 10 is the most")
    ]
    without, _ = run(rounds=1, away=[SPOILED])
    assert same_bits(state, without), "the others count as if it had not answered"
    honest, recorder = run(rounds=1, screen=10.0)
    assert reasons(recorder) == []
    assert same_bits(honest, run(rounds=1)[0])
