"""Mail that neighbours cannot use: they leave it out by its sender's name, and the run is as if it had not been sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from tests.attacks import attack
from tests.deploy.test_client import EXCHANGE, SHARING, Clients, Run
from unisono.core.addressing import address, parse
from unisono.core.config import merge
from unisono.core.forms import SEALED
from unisono.core.payload import Payload, Tensors, Update
from unisono.deploy.mail import Mail
from unisono.engines.flower.messages import Request
from unisono.federation.loop import Callback, RoundRecord, ServerState

LIAR, OTHERS = 1, (0, 2)
LOOSE = merge(EXCHANGE, {"federation": {"quorum": 0.5}})
Lie = Callable[[Tensors], Tensors]


def changed(part: str, change: Callable[[Tensor], Tensor], tensors: Tensors) -> Tensors:
    """Return mail in which one part is another."""
    return {name: change(tensor) if parse(name).name == part else tensor for name, tensor in tensors.items()}


def points(change: Callable[[Tensor], Tensor]) -> Lie:
    return partial(changed, "points", change)


def rows(change: Callable[[Tensor], Tensor]) -> Lie:
    return partial(changed, "rows", change)


def garbled(tensor: Tensor) -> Tensor:
    """Return a tensor that looks sealed, and is not."""
    width = 1 + len(SEALED)
    data = SEALED + bytes(len(tensor) * width - len(SEALED))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(len(tensor), width)


def without(part: str) -> Lie:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if parse(name).name != part}


HIDDEN: dict[str, tuple[Lie, str]] = {
    "another type": (points(Tensor.float), "points has type torch.float32, expected torch.uint8"),
    "not a number": (points(lambda x: torch.full(x.shape, torch.nan)), "points has type torch.float32"),
    "another shape": (points(lambda x: x[..., :3]), "points has shape (4, 1, 16, 3), expected ('points', 1, 16, 16)"),
    "fewer than rows": (points(lambda x: x[:0]), "rows has shape (4,)"),
    "none at all": (lambda mail: {name: tensor[:0] for name, tensor in mail.items()}, "points is empty"),
    "rows of another type": (rows(Tensor.float), "rows has type torch.float32"),
    "rows of another number": (rows(lambda x: x[:1]), "rows has shape (1,)"),
    "rows below zero": (rows(lambda x: -1 - x), "rows holds values beyond 0 to inf"),
}
"""Lies in sealed mail that its receivers alone can see, and the reason that they give."""
SEEN: dict[str, tuple[Lie, str]] = {
    "one row a pixel": (points(Tensor.flatten), "offers/points has 1024 rows, and 4 are the most"),
    "too many": (lambda mail: {name: torch.cat([x] * 9) for name, x in mail.items()}, "offers/points has 36 rows"),
    "no rows": (without("rows"), "offers/rows is missing"),
    "no points": (without("points"), "offers/points is missing"),
    "something else": (lambda mail: {**mail, address(0, "x"): torch.ones(1)}, "offers/x is unknown"),
}
"""Lies that the server sees from outside."""
UNSEALED: dict[str, tuple[Lie, str]] = {
    "garbage": (lambda mail: {name: garbled(x) for name, x in mail.items()}, "a sealed tensor of client 1 cannot be opened"),
    "in the clear": (lambda mail: mail, "offers/1>0.points looks like samples that nobody has sealed"),
}


class Watch(Callback):
    """Callback that keeps the numbers of clients, and what the server heard of failures."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.records.append(record)


def learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Lie | None, sealed: bool = True) -> tuple[ServerState, Watch]:
    """Run two rounds in which the liar's offers are others; without a lie it sends none."""
    honest = Mail.sealed

    def sends(self: Mail, update: Update, request: Request) -> Update:
        groups = dict(update.payload.groups)
        if self._client_id != LIAR or "offers" not in groups:
            return honest(self, update, request)
        offers = groups.pop("offers")
        if lie is None:
            return replace(update, payload=Payload(groups))
        if sealed:
            return honest(self, replace(update, payload=Payload({**groups, "offers": lie(offers)})), request)
        kept = honest(self, replace(update, payload=Payload(groups)), request)
        return replace(kept, payload=Payload({**kept.payload.groups, "offers": lie(offers)}))

    monkeypatch.setattr(Mail, "sealed", sends)
    run, watch = Run(Clients(tmp_path, **SHARING), LOOSE), Watch()
    return run.federation.run(run.federation.initial_state(), [watch]), watch


def weights(state: ServerState) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.server.flatten().items() if name.startswith("encoder")}


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The model of a run in which the liar sends nothing to its neighbours."""
    with pytest.MonkeyPatch.context() as patch:
        return weights(learn(tmp_path_factory.mktemp("silent"), patch, None)[0])


def named(record: RoundRecord) -> dict[int, list[str]]:
    """Return whose mail clients have left out."""
    told: dict[int, list[str]] = {}
    for _, stats in record.clients:
        told.setdefault(stats.client_id, []).extend(name for name in stats.metrics if name.startswith("left_out."))
    return {client: names for client, names in told.items() if names}


@attack(
    "B8",
    "Sends neighbours samples of another type, shape, number or range, sealed or not, or what cannot be opened",
    "its mail alone is left out; neighbours name it",
)
@pytest.mark.parametrize("lie", [*HIDDEN, *UNSEALED])
def test_mail_that_cannot_be_used_is_left_out(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tell, reason = {**HIDDEN, **UNSEALED}[lie]
    state, watch = learn(tmp_path, monkeypatch, tell, sealed=lie in HIDDEN)
    assert state.round == 2
    for record in watch.records:
        assert record.failures == [], "nobody fails"
        assert named(record) == {client: [f"left_out.{LIAR}"] for client in OTHERS}
    assert any("the mail of client 1 is left out: " in line and reason in line for line in caplog.messages)
    assert all(torch.equal(weights(state)[name], tensor) for name, tensor in silent.items())


@pytest.mark.parametrize("lie", SEEN)
def test_mail_whose_names_or_numbers_are_wrong_is_left_out_by_the_server(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, watch = learn(tmp_path, monkeypatch, SEEN[lie][0])
    assert state.round == 2
    (failure,) = watch.records[0].failures
    assert (failure.client_id, failure.phase) == (LIAR, "offer")
    assert SEEN[lie][1] in failure.reason
    assert all(not named(record) for record in watch.records)


def test_honest_mail_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: Any) -> None:
    state, watch = learn(tmp_path, monkeypatch, lambda mail: mail)
    assert all(not record.failures and not named(record) for record in watch.records)
    assert any(not torch.equal(weights(state)[name], tensor) for name, tensor in silent.items())
