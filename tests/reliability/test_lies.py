"""One client of a federation says anything at all: the run goes on, it is counted within bounds or left out by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from reliability.federation import Everybody

from tests.core.payloads import PAYLOADS
from tests.engines.flower.grid import InstantGrid
from tests.federation.counting import Counting, Diary
from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.payload import Payload, Reduce, Share, Update
from unisono.engines.flower.engine import FlowerEngine, ServerPolicy
from unisono.engines.flower.messages import TEXTS, answer_content, payload_record, read_request, with_checksum
from unisono.federation.aggregate import AggregationConfig
from unisono.federation.client_store import ClientStateStore
from unisono.federation.client_turn import FederatedDataset, prepare_nets, run_client
from unisono.federation.loop import FederationConfig, LoopConfig, RoundLoop, ServerState
from unisono.federation.postprocess import CompressionConfig, Postprocessor, PrivacyConfig

SIZES, LIAR, ROUNDS = (3, 3, 3, 3, 3), 1, 2
NUMBERS = st.floats() | st.integers(-(10**40), 10**40) | st.sampled_from([0, 1, 3, 3.0001, 1e12, 1e39, -1, True])
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TOLD = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("client", "weight", "metrics", "samples", "seconds", "owner", "card", "other"), ANYTHING)
) | st.fixed_dictionaries(
    {"metrics": st.dictionaries(st.text(max_size=6) | st.sampled_from(["round", "probe.x", "own"]), ANYTHING, max_size=3)}
)
VALUES = st.lists(st.floats(width=32) | st.floats(-1e18, 1e18) | st.floats(-100, 100), min_size=2, max_size=2)
COUNT = {"n": torch.ones(1, dtype=torch.int64)}
NUMBERS_SENT = VALUES.map(lambda x: Payload({"number": {"x": torch.tensor(x)}, "turns": COUNT}))
TEXT = st.text(max_size=20) | ANYTHING.map(json.dumps)


@st.composite
def lies(draw: st.DrawFn) -> Callable[[RecordDict], RecordDict]:
    """Return what a liar makes of its honest answer."""
    kind = draw(st.sampled_from(["told", "numbers", "numbers", "update", "bytes", "state", "text", "removed"]))
    values = {"told": TOLD, "numbers": NUMBERS_SENT, "update": PAYLOADS, "state": PAYLOADS, "text": TEXT}
    lied = draw(values.get(kind, st.binary(max_size=40)))
    removed = draw(st.sampled_from(["answer", "update", TEXTS]))

    def lie(content: RecordDict) -> RecordDict:
        if kind == "told":
            honest = json.loads(str(content.config_records["answer"]["answer"]))
            content["answer"] = ConfigRecord({"answer": json.dumps({**honest, **lied})})
        elif kind == "text":
            content["answer"] = ConfigRecord({"answer": lied})
        elif kind in ("numbers", "update", "state"):
            content["local" if kind == "state" else "update"] = payload_record(lied)
        elif kind == "bytes":
            content["update"] = ConfigRecord({"payload": lied})
        with_checksum(content)
        if kind == "removed":
            if removed == TEXTS:
                del content.config_records["answer"][TEXTS]
            else:
                del content[removed]
        return content

    return lie


def sends(**groups: Any) -> Callable[[RecordDict], RecordDict]:
    """Return a liar that sends these groups."""
    honest = {"number": {"x": torch.ones(2)}, "turns": COUNT}

    def lie(content: RecordDict) -> RecordDict:
        content["update"] = payload_record(Payload({**honest, **groups}))
        return with_checksum(content)

    return lie


def tells(text: str = "", **told: Any) -> Callable[[RecordDict], RecordDict]:
    """Return a liar that tells this text, or these values among honest ones."""

    def lie(content: RecordDict) -> RecordDict:
        honest = json.loads(str(content.config_records["answer"]["answer"]))
        content["answer"] = ConfigRecord({"answer": text or json.dumps({**honest, **told})})
        return with_checksum(content)

    return lie


NAMED: dict[str, tuple[Callable[[RecordDict], RecordDict], str]] = {
    "brackets": (tells("[" * 100_000), "is nested too deeply"),
    "braces": (tells('{"a":' * 100_000), "is nested too deeply"),
    "half precision, whose sum overflows": (sends(number={"x": torch.ones(2, dtype=torch.float16)}), "has type torch.float16"),
    "double precision": (sends(number={"x": torch.ones(2, dtype=torch.float64)}), "has type torch.float64"),
    "a longer tensor to keep apart": (sends(turns={"n": torch.ones(2, dtype=torch.int64)}), "has shape (2,), expected (1,)"),
    "another type to keep apart": (sends(turns={"n": torch.ones(1)}), "has type torch.float32, expected torch.int64"),
    "another name to keep apart": (sends(turns={"m": torch.ones(1, dtype=torch.int64)}), "turns/m is unknown"),
    "nothing to keep apart": (sends(turns={}), "turns/n is missing"),
    "a value beyond its limits": (sends(turns={"n": -torch.ones(1, dtype=torch.int64)}), "holds values beyond"),
    "a name that clears a screen": (tells(metrics={"\x1b[2J": 1.0}), "printable"),
    "half a character": (tells(metrics={"\ud800": 1.0}), "printable"),
    "a metric whose sum overflows": (tells(metrics={"own": 1e308}), "metric own is 1e+308"),
    "a negative time": (tells(seconds=-1.0), "the time is -1"),
    "a weight above its samples": (tells(weight=4.0), "weight is at most 3"),
    "a weight that takes the mean over": (tells(weight=1e12), "weight is at most 3"),
    "more samples than there are": (tells(samples=10**300), "the number of samples is 1e+300"),
}
"""Lies that ended a run, took a sum over or spoilt a log before they were looked for, and the reason that is told."""


class Loose(Counting):
    """A method with a group that clients received nothing like of, and that has no form."""

    @property
    def shares(self) -> Mapping[str, Share]:
        return {**super().shares, "loose": Share(Reduce.MEAN)}

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        update, local = super().client_step(nets, received, local, data, ctx)
        return replace(update, payload=update.payload.with_groups(loose={"x": torch.ones(3)})), local


SCREENED = AggregationConfig(screen=10.0)


def learn(
    lie: Callable[[RecordDict], RecordDict] | None,
    liar: int = LIAR,
    kind: type[Counting] = Counting,
    aggregation: AggregationConfig = SCREENED,
) -> tuple[ServerState, Diary]:
    """Run two rounds with the liar, or without it where there is no lie."""
    method = kind.make(num_clients=len(SIZES))
    postprocessor = Postprocessor(PrivacyConfig(), CompressionConfig(), method.shares)
    data = FederatedDataset(torch.zeros(sum(SIZES), 1), torch.arange(sum(SIZES)).split(list(SIZES)), None)
    nets, cpu = prepare_nets(method, torch.device("cpu")), torch.device("cpu")

    def reply(message: Message) -> Any:
        request = read_request(message.content)
        client = request.client_id
        if client == liar and lie is None:
            return RecordDict()
        done = run_client(
            method, nets, request.received, request.local, data.client_data(client, cpu), request.context(cpu), postprocessor
        )
        content = answer_content(done)
        return lie(content) if client == liar and lie is not None else content

    policy = ServerPolicy(method, postprocessor, aggregation, 60.0, poll=0.0)
    engine = FlowerEngine(InstantGrid(reply), Everybody(len(SIZES), SIZES.__getitem__), policy, "{}")  # type: ignore[arg-type]
    config = LoopConfig(federation=FederationConfig(rounds=ROUNDS, strict=False), aggregation=aggregation)
    loop, diary = RoundLoop(method, engine, ClientStateStore(), config, 0), Diary()
    return loop.run(loop.initial_state(), [diary]), diary


def number_of(state: ServerState) -> torch.Tensor:
    return state.server.groups["number"]["x"]


WITHOUT = learn(None)[0]
LONGEST = 5 * 2**0.5
"""Length of the longest honest step: the last client adds 5 to both numbers."""


@pytest.mark.parametrize("lie", NAMED)
@pytest.mark.parametrize("liar", [0, LIAR])
def test_a_lie_is_named(lie: str, liar: int) -> None:
    state, diary = learn(NAMED[lie][0], liar)
    assert state.round == ROUNDS
    for record in diary.records:
        assert [failure.client_id for failure in record.failures] == [liar], "nobody else suffers"
        assert NAMED[lie][1] in record.failures[0].reason
    assert torch.equal(number_of(state), number_of(learn(None, liar)[0]))


UNLIKE = sends(loose={"x": torch.ones(4)})


@pytest.mark.parametrize("screen", [0.0, 10.0])
@pytest.mark.parametrize("rule", ["mean", "median", "trimmed-mean", "multi-krum"])
@pytest.mark.parametrize("liar", range(len(SIZES)))
def test_shapes_that_nobody_declared_are_those_of_most(screen: float, rule: Any, liar: int) -> None:
    rules = AggregationConfig(screen=screen, rule=rule, trim=0.25)
    state, diary = learn(UNLIKE, liar, Loose, rules)
    for record in diary.records:
        (failure,) = record.failures
        assert (failure.client_id, "other names or shapes than most" in failure.reason) == (liar, True)
    assert torch.equal(number_of(state), number_of(learn(None, liar, Loose, rules)[0]))


def test_an_honest_answer_counts() -> None:
    assert not any(record.failures for record in learn(sends())[1].records)


@settings(max_examples=100, deadline=None)
@given(lies())
def test_no_answer_ends_a_run_or_takes_it_over(lie: Callable[[RecordDict], RecordDict]) -> None:
    state, diary = learn(lie)
    assert state.round == ROUNDS
    for record in diary.records:
        counted = {stats.client_id for _, stats in record.clients}
        named = {failure.client_id for failure in record.failures}
        assert counted | named == set(range(len(SIZES)))
        assert not counted & named
        assert named <= {LIAR}, "nobody else suffers"
    if all(record.failures for record in diary.records):
        assert torch.equal(number_of(state), number_of(WITHOUT))
    # A liar has a fifth of the mean at most, and no step beyond the screen: the median of the others and ten times its spread.
    moved = float((number_of(state) - number_of(WITHOUT)).norm())
    assert moved <= ROUNDS * 4 * LONGEST, moved
