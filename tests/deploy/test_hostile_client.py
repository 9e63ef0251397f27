"""Clients that lie: they are left out, and nobody else notices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from tests.attacks import attack
from tests.deploy.test_client import EXCHANGE, GROUP_NORM, SHARING, SIMPLE, Clients, Run
from tests.deploy.test_secure_sums import ORCHESTRA, SECURE, TEN, learnt, revealed_lines
from unisono.backends import Backend
from unisono.core.config import merge
from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.deploy.evaluation import ClientEvaluationCallback
from unisono.deploy.negotiation import negotiate
from unisono.federation.aggregate import AggregationConfig
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import RoundLoop, RoundRecord
from unisono.privacy.secure_sum_client import ClientSum

HONEST = {"shape": [1, 8, 8], "samples": 50, "mean": [0.4], "std": [0.2]}
LIES: list[dict[str, Any]] = [
    {"mean": [math.nan]},
    {"mean": [1e300]},
    {"mean": [-math.inf]},
    {"std": [math.inf]},
    {"std": [-1.0]},
    {"std": ["0.2"]},
    {"mean": [0.4, 0.4]},
    {"mean": 0.4},
    {"samples": -5},
    {"samples": 0},
    {"samples": 1e30},
    {"samples": 10**30},
    {"samples": True},
    {"samples": None},
    {"shape": [1, [8], 8]},
    {"shape": [1, 8.0, 8]},
    {"shape": [0, 8, 8]},
    {"shape": [1, -8, 8]},
    {"shape": []},
    {"shape": "188"},
    {"shape": [1, 10**9, 8]},
]


@attack("B1", "Describes its data with values that are not finite, negative or nested", "left out; nobody else notices")
@pytest.mark.parametrize("lie", LIES, ids=str)
def test_an_absurd_description_neither_ends_a_run_nor_counts(lie: dict[str, Any]) -> None:
    agreed = negotiate({0: {**HONEST, **lie}, 1: HONEST, 2: HONEST})
    assert (agreed.shape, agreed.mean, agreed.std) == ((1, 8, 8), pytest.approx((0.4,)), pytest.approx((0.2,)))
    reason = agreed.rejection_reason({**HONEST, **lie})
    assert reason
    assert "\n" not in reason


@attack("A20", "Computes the noise on the mean from the run's seed, and subtracts it", "its noise comes from the system")
def test_noise_of_a_real_run_is_nobodys_to_repeat(tmp_path: Path) -> None:
    clients = Clients(tmp_path, require={"own_randomness": False}, bounds={"max_attempts": 9})
    noisy = {"privacy": {"clip_norm": 1.0, "noise_multiplier": 1.0}, "aggregation": {"weighting": "uniform"}, **GROUP_NORM}
    run = Run(clients, merge(SIMPLE, noisy))
    assert Backend(run.method, run.engine, [], {}, "none").is_real, "as every federation of deploy/server.py"
    found = []
    for secret in (False, False, True, True):
        loop = RoundLoop(run.method, run.engine, ClientStateStore(), run.config.loop, 0, secret_noise=secret)
        found.append(loop.run(loop.initial_state(), (), 1).server.flatten())
    alike = [all(torch.equal(a[name], b[name]) for name in a) for a, b in itertools.pairwise(found)]
    assert alike == [True, False, False]


def test_a_description_without_its_parts_is_refused() -> None:
    agreed = negotiate({1: HONEST})
    assert agreed.rejection_reason({})
    with pytest.raises(UserError, match="No client has described its data"):
        negotiate({0: {}})


@attack("B4", "Claims a billion samples to set the mean of the data alone", "counts for at most ten times the median")
def test_no_client_sets_the_mean_alone_by_claiming_many_samples() -> None:
    """Ten times the median is all that anyone counts for."""
    liar = {**HONEST, "samples": 10**9, "mean": [1.0]}
    agreed = negotiate({0: liar, 1: HONEST, 2: HONEST})
    assert agreed.mean[0] == pytest.approx((10 * 1.0 + 2 * 0.4) / 12)


@attack("B4", "Claims a weight that outweighs all others together", "lowered to aggregation.max_weight_share of the mean")
def test_no_client_has_more_than_its_share_of_a_mean() -> None:
    config = AggregationConfig(max_weight_share=0.4)
    weight = config.capped(1e9, 100.0)
    assert weight / (weight + 100.0) == pytest.approx(0.4)
    assert config.capped(20.0, 100.0) == 20.0
    assert config.capped(20.0, 0.0) == 20.0  # it is alone
    assert AggregationConfig().capped(1e9, 100.0) == 1e9


def _in_each_sum(handler: Any, change: Callable[[ClientSum], None]) -> None:
    """Have a client change its part of every secure sum after it has begun."""
    begin = handler._sums.begin

    def changed(*asked: Any) -> Any:
        update, told = begin(*asked)
        part = handler._sums._open.part
        change(part)
        return update, {**told, "card": part.card.as_json()}

    handler._sums.begin = changed


@attack(
    "B5", "Signs a card with a key that ends every exchange, a group that nobody has, or a metric named as a log's own column",
    "it alone is left out",
)  # fmt: skip
@pytest.mark.parametrize(
    "lie", [{"share_key": bytes(32)}, {"mask_key": bytes(32)}, {"groups": ("encoder", "x")}, {"metrics": ("round",)}], ids=str
)
def test_a_card_that_would_stop_the_others_costs_its_client_alone(tmp_path: Path, lie: dict[str, Any]) -> None:
    clients = Clients(tmp_path, 4)

    def forge(part: ClientSum) -> None:
        card = replace(part.card, **lie)
        part.card = replace(card, signature=part._identity.sign(card.body(part._terms.digest)))

    _in_each_sum(clients.handlers[2], forge)
    _, record = learnt(Run(clients, merge(TEN, SECURE), secure=True))
    assert [failure.client_id for failure in record.failures] == [2]
    assert record.num_answered == 3
    assert set(record.metrics) == {"loss"}


@attack("B4", "Adds words to a secure sum that claim a weight above all clients", "the sum is void; the model stays as it was")
def test_words_that_no_update_gives_void_the_sum(tmp_path: Path) -> None:
    clients = Clients(tmp_path, 4)

    def poison(part: ClientSum) -> None:
        honest = part._vector
        assert honest is not None

        def heavier(names: tuple[str, ...]) -> list[Any]:
            short, wide = honest(names)
            return [short, wide + wide.dtype.type(2**46)]

        part._vector = heavier

    _in_each_sum(clients.handlers[2], poison)
    run = Run(clients, merge(TEN, SECURE), secure=True)
    with pytest.raises(UserError, match="below the quorum"):
        run.go()
    assert all("a client has sent words that no update gives" in failure.reason for failure in run.failures)
    assert revealed_lines(clients), "it is noticed when the masks are off"


@attack("B5", "Answers a step of a secure sum with numbers that are no numbers", "it alone is left out")
@pytest.mark.parametrize(
    ("step", "lie"), [("masked", {"unreadable": [math.inf]}), ("shares", {"commitment": 7}), ("alive", {})]
)
def test_a_step_that_cannot_be_read_costs_its_client_alone(tmp_path: Path, step: str, lie: dict[str, Any]) -> None:
    clients = Clients(tmp_path, 4)
    honest = clients.handlers[2].sum_step

    def lying(values: dict[str, Any]) -> Any:
        told, payload = honest(values)
        return (lie if values["step"] == step == "alive" else {**told, **lie} if values["step"] == step else told), payload

    clients.handlers[2].sum_step = lying  # type: ignore[method-assign]
    run = Run(clients, merge(TEN, SECURE), secure=True)
    _, record = learnt(run)
    # Who leaves after its vector has arrived is part of the sum.
    assert record.num_answered == (4 if step == "alive" else 3)
    assert [failure.client_id for failure in record.failures] == ([] if step == "alive" else [2])


@attack("B8", "Gives a score of four hundred digits", "its scores are left out")
def test_a_score_that_is_too_large_for_a_number_is_left_out(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    honest, lie = clients.handlers[1].evaluate, {"scores": {"align": 10**400}}
    clients.handlers[1].evaluate = lambda request: {**honest(request), **lie}  # type: ignore[method-assign]
    run, notes = Run(clients, SIMPLE), []
    callback = ClientEvaluationCallback(run.engine, run.method, run.run_spec, run.config, notes.append)
    state, record = replace(run.federation.initial_state(), round=1), RoundRecord(0)
    callback.on_round_end(state, record)
    assert any(note.startswith("client 1 did not probe") for note in notes)
    assert record.metrics["probe.align"] > 0, "the others count"


ODD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "wider": lambda points: torch.cat([points, points], dim=1),
    "flat": torch.flatten,
    "whole numbers": lambda points: points.long(),
    "many": lambda points: points.repeat(100, 1),
    "none": lambda points: points[:0, :1],
}


@attack("B1", "Sends centroids of another form than all others, or very many of them", "it alone is left out")
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("secure", [False, True])
def test_centroids_of_another_form_cost_their_client_alone(tmp_path: Path, kind: str, secure: bool) -> None:
    clients = Clients(tmp_path, 4)
    honest = clients.handlers[0].answer

    def odd(request: Any) -> Any:
        answer = honest(request)
        groups = {name: dict(group) for name, group in answer.update.payload.groups.items()}
        if "local_centroids" in groups:
            groups["local_centroids"] = {name: ODD[kind](points) for name, points in groups["local_centroids"].items()}
        return replace(answer, update=replace(answer.update, payload=Payload(groups)))

    clients.handlers[0].answer = odd  # type: ignore[method-assign]
    settings = {"federation": {"rounds": 1, "quorum": 0.5}, **(SECURE if secure else {})}
    state, record = learnt(Run(clients, merge(ORCHESTRA, settings), secure=secure))
    assert {failure.client_id for failure in record.failures} == {0}
    assert all("has shape" in failure.reason or "has type" in failure.reason for failure in record.failures)
    assert state["centroids/centroids"].shape[0] == 3


@attack("B8", "Sends samples to a neighbour under a name of thousands of digits, or without rows", "it alone is left out")
@pytest.mark.parametrize("name", [">" + "9" * 5000 + ".points", ">1.points"])
def test_odd_mail_costs_its_sender_alone(tmp_path: Path, name: str) -> None:
    clients = Clients(tmp_path, **SHARING)
    honest = clients.handlers[0].answer

    def odd(request: Any) -> Any:
        answer = honest(request)
        mail = {group: {name: torch.tensor(1.0)} for group in answer.update.payload.groups if group in ("offers", "reserve")}
        return replace(answer, update=replace(answer.update, payload=answer.update.payload.with_groups(**mail)))

    clients.handlers[0].answer = odd  # type: ignore[method-assign]
    run = Run(clients, merge(EXCHANGE, {"federation": {"quorum": 0.3}}))
    run.go()
    assert {failure.client_id for failure in run.failures} == {0}
