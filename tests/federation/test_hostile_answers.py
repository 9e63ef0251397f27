"""One client of a run with ``strict = false`` answers nonsense: it is left out and named, and the others learn on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from tests.federation.counting import Counting, Diary
from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.errors import MethodError
from unisono.core.payload import Payload, Update
from unisono.engines.embedded import EmbeddedEngine, EngineConfig
from unisono.engines.shards import WorkerSetup
from unisono.federation.aggregate import AggregationConfig
from unisono.federation.client_store import ClientStateStore
from unisono.federation.client_turn import FederatedDataset
from unisono.federation.loop import FederationConfig, LoopConfig, RoundLoop, ServerState
from unisono.federation.postprocess import CompressionConfig, Postprocessor, PrivacyConfig

SIZES = (3, 3, 3)
CULPRIT = 1
Answer = tuple[Update, Payload]


class SilentError(Exception):
    """Error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def number(x: Any) -> Payload:
    return Payload({"number": {"x": x}, "turns": {"n": torch.ones(1)}})


def silent(update: Update, local: Payload, received: Payload) -> Answer:
    raise SilentError


def leave(update: Update, local: Payload, received: Payload) -> Answer:
    raise SystemExit(3)


def sends(**fields: Any) -> Callable[[Update, Payload, Payload], Answer]:
    return lambda update, local, received: (replace(update, **fields), local)


def keeps(tensor: torch.Tensor) -> Callable[[Update, Payload, Payload], Answer]:
    return lambda update, local, received: (update, local.with_groups(kept={"x": tensor}))


TRICKS: dict[str, tuple[Callable[[Update, Payload, Payload], Answer], str]] = {
    "weight 1e39": (sends(weight=1e39), r"weight is at most 3 .* got 1e\+39"),
    "weight 1e12": (sends(weight=1e12), r"weight is at most 3 .* got 1e\+12"),
    "weight 4": (sends(weight=4.0), "weight is at most 3 .* got 4"),
    "weight NaN": (sends(weight=float("nan")), "the weight is nan"),
    "parameters of 3e38": (sends(payload=number(torch.full((2,), 3e38))), r"number/x holds a value of 3e\+38"),
    "NaN": (sends(payload=number(torch.full((2,), float("nan")))), "number/x holds a value that is not finite"),
    "tensor as weight": (sends(weight=torch.tensor(1.0)), "the weight must be a number, got Tensor"),
    "tensor as metric": (sends(metrics={"loss": torch.tensor(1.0)}), "metric loss must be a number, got Tensor"),
    "text as metric": (sends(metrics={"loss": "low"}), "metric loss must be a number, got str"),
    "complex": (sends(payload=number(torch.ones(2, dtype=torch.complex64))), "number/x has type complex64"),
    "sparse": (sends(payload=number(torch.ones(2).to_sparse())), "number/x is a sparse tensor"),
    "list": (sends(payload=number([1.0, 2.0])), "AttributeError"),
    "complex state": (keeps(torch.ones(2, dtype=torch.complex64)), "kept/x has type complex64"),
    "sparse state": (keeps(torch.ones(2).to_sparse()), "kept/x is a sparse tensor"),
    "silent error": (silent, "SilentError, whose text cannot be read"),
    "exit": (leave, "SystemExit: 3"),
    "integers": (
        sends(payload=number(torch.ones(2, dtype=torch.int64))),
        "number/x has type torch.int64, expected torch.float32",
    ),
    "booleans": (
        sends(payload=number(torch.ones(2, dtype=torch.bool))),
        "number/x has type torch.bool, expected torch.float32",
    ),
    "metric round": (sends(metrics={"round": 7.0}), "a metric cannot be called 'round'"),
    "metric client": (sends(metrics={"client": 7.0}), "a metric cannot be called 'client'"),
    "metric probe.linear": (sends(metrics={"probe.linear": 1.0}), "a metric cannot be called 'probe.linear'"),
}


class Hostile(Counting):
    """Counting, with one client that plays a trick."""

    trick: Callable[[Update, Payload, Payload], Answer]
    told: ClassVar[Mapping[str, float]] = {}

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        answer = super().client_step(nets, received, local, data, ctx)
        return self.trick(*answer, received) if ctx.client_id == CULPRIT else answer

    def server_metrics(self, server: Payload) -> Mapping[str, float]:
        return self.told


def run(trick: Callable[[Update, Payload, Payload], Answer], workers: int = 0) -> tuple[ServerState, Diary]:
    method = Hostile.make(num_clients=len(SIZES))
    object.__setattr__(method, "trick", trick)
    clients = FederatedDataset(torch.zeros(sum(SIZES), 1), torch.arange(sum(SIZES)).split(list(SIZES)), None)
    postprocessor = Postprocessor(PrivacyConfig(), CompressionConfig(), method.shares)
    setup = WorkerSetup(method, clients, postprocessor, AggregationConfig())
    diary = Diary()
    with EmbeddedEngine(setup, EngineConfig(workers=workers, device="cpu")) as engine:
        config = LoopConfig(FederationConfig(rounds=2, strict=False))
        loop = RoundLoop(method, engine, ClientStateStore(), config, 0)
        return loop.run(loop.initial_state(), [diary]), diary


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", TRICKS)
def test_a_client_that_answers_nonsense_is_left_out_and_named(name: str, workers: int) -> None:
    trick, reason = TRICKS[name]
    if workers and name == "exit":
        reason = ""
    state, diary = run(trick, workers)
    assert state.server.groups["number"]["x"].tolist() == [4.0, 4.0]  # two rounds of the mean of 1 and 3
    failures = [failure for record in diary.records for failure in record.failures]
    assert [failure.client_id for failure in failures] == [CULPRIT, CULPRIT]
    for failure in failures:
        assert re.search(reason, failure.reason)


def write(update: Update, local: Payload, received: Payload) -> Answer:
    received.groups["number"]["x"].fill_(100.0)
    return update, local


def change_settings(update: Update, local: Payload, received: Payload) -> Answer:
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    return update, local


@pytest.mark.parametrize("workers", [0, 1])
def test_a_client_cannot_write_into_what_others_receive(workers: int) -> None:
    with pytest.raises(MethodError, match=r"client_step wrote into number/x of received, which is read-only"):
        run(write, workers)


def test_settings_of_a_client_are_its_own() -> None:
    run(change_settings)
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()


def test_the_server_cannot_overwrite_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hostile, "told", {"asked": 1.0})
    with pytest.raises(MethodError, match="server_metrics: a metric cannot be called 'asked'"):
        run(lambda update, local, received: (update, local))
