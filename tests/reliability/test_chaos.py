"""Five hundred of the schedules of ``make chaos``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from reliability.chaos import make_template, play

from unisono.core.errors import ClientError
from unisono.core.payload import Payload
from unisono.deploy.states import ClientStateFiles
from unisono.engines.flower import engine
from unisono.federation.client_turn import ClientResult
from unisono.federation.loop import PhaseResult

SEEDS, BLOCK = 500, 50


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("chaos"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_promises_hold_in_any_weather(template: Path, first: int) -> None:
    played = [play(seed, template) for seed in range(first, first + BLOCK)]
    assert [schedule for schedule in played if schedule.problems] == []
    assert sum(schedule.is_finished for schedule in played) > 0.8 * BLOCK


def test_a_seed_replays_exactly(template: Path) -> None:
    assert play(2, template) == play(2, template)


def test_a_lost_state_is_noticed(template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = ClientStateFiles.load
    calls: list[int] = []

    def forgetful(self: ClientStateFiles, reference: Payload) -> Payload:
        calls.append(1)
        return Payload() if len(calls) == 5 else good(self, reference)

    monkeypatch.setattr(ClientStateFiles, "load", forgetful)
    assert play(7, template).problems == ["the model is not the one of the answers that were counted"]


def test_a_failure_without_a_name_is_noticed(template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = engine._Shards._add

    def silent(self: engine._Shards, part: PhaseResult, client_id: int, result: ClientResult | ClientError) -> None:
        if not isinstance(result, ClientError):
            add(self, part, client_id, result)

    monkeypatch.setattr(engine._Shards, "_add", silent)
    assert any("were asked" in problem for problem in play(3, template).problems)
