"""Secure sums between real clients and the server's engine: drop-outs, attacks, clipping, compression, owners' rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from tests.attacks import attack
from tests.deploy.test_client import SIMPLE, Clients, Run, request
from unisono.core.config import merge
from unisono.core.errors import ClientError, UserError
from unisono.core.payload import Payload
from unisono.deploy import masked_sums
from unisono.deploy.policy import Books
from unisono.engines.flower.messages import Request, payload_of, read_values
from unisono.federation.loop import Callback, RoundRecord, ServerState

SECURE = {"privacy": {"secure_aggregation": True}}
TEN = merge(SIMPLE, {"federation": {"rounds": 1, "quorum": 0.5}})
ORCHESTRA = {
    **SIMPLE,
    "method": {"name": "orchestra", "projection_dim": 16, "num_local_clusters": 4, "num_global_clusters": 3},
}


def masked_request(run: Run, client_id: int, **extra: Any) -> Request:
    """The first message of a sum over three clients."""
    small = {"cohort": [0, 1, 2], "threshold": 3, "nonce": "7" * 32, "max_weight": 64.0, **extra}
    return replace(request(run, client_id), extra=small)


def cards_of(clients: Clients, requests: Mapping[int, Request]) -> list[dict[str, Any]]:
    return [clients.handlers[number].answer(asked).card["card"] for number, asked in requests.items()]  # type: ignore[index]


def shares_question(cards: list[dict[str, Any]]) -> dict[str, Any]:
    return {"step": "shares", "nonce": "7" * 32, "cards": cards}


def revealed_lines(clients: Clients) -> list[dict[str, Any]]:
    lines = [
        json.loads(line)
        for directory in clients.directories
        for line in (directory.path / "ledger.jsonl").read_text().splitlines()
    ]
    return [line for line in lines if line["kind"] == "reveal"]


class Metrics(Callback):
    """The metrics and bytes of all rounds."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.records.append(record)


def learnt(run: Run) -> tuple[dict[str, torch.Tensor], RoundRecord]:
    watch = Metrics()
    state = run.federation.run(run.federation.initial_state(), [watch], 1)
    return state.server.flatten(), watch.records[-1]


def assert_alike(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], atol: float) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], atol=atol, rtol=1e-5)


def test_a_masked_sum_is_the_mean_and_single_updates_are_noise(tmp_path: Path) -> None:
    plain, expected = learnt(Run(Clients(tmp_path / "a"), SIMPLE))
    clients = Clients(tmp_path / "b")
    found, record = learnt(Run(clients, merge(SIMPLE, SECURE), secure=True))
    assert_alike(found, plain, 1e-6)
    assert record.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=1e-6)
    assert record.bytes_up >= expected.bytes_up
    answers = [content for content in clients.seen if "answer" in content.config_records]
    for content in answers:
        told = json.loads(str(content.config_records["answer"]["answer"]))
        assert (told["weight"], told["metrics"]) == (0.0, {}), "weights and metrics are in the masked vector"
        assert not payload_of(content, "update").groups
    vectors = [payload_of(content, "masked").groups["masked"] for content in clients.seen if "masked" in content]
    assert len(answers) == len(vectors) == 3
    for vector in vectors:
        assert (vector["short"].dtype, vector["wide"].dtype) == (torch.int32, torch.int64)
        for tensor in vector.values():
            bits = 8 * tensor.element_size()
            assert float(tensor.double().abs().mean()) == pytest.approx(2.0 ** (bits - 2), rel=0.2), "uniform over all words"


def test_clipped_differences_are_masked_too(tmp_path: Path) -> None:
    clipped = merge(SIMPLE, {"privacy": {"clip_norm": 0.5}, "aggregation": {"weighting": "uniform"}})
    plain, _ = learnt(Run(Clients(tmp_path / "a"), clipped))
    found, _ = learnt(Run(Clients(tmp_path / "b"), merge(clipped, SECURE), secure=True))
    assert_alike(found, plain, 1e-6)


def test_with_8_bits_words_are_half_as_long_and_the_mean_is_close(tmp_path: Path) -> None:
    plain, _ = learnt(Run(Clients(tmp_path / "a"), SIMPLE))
    whole, long_words = learnt(Run(Clients(tmp_path / "b"), merge(SIMPLE, SECURE), secure=True))
    short = merge(SIMPLE, {**SECURE, "compression": {"bits": 8}})
    found, short_words = learnt(Run(Clients(tmp_path / "c"), short, secure=True))
    start = Run(Clients(tmp_path / "d"), SIMPLE).federation.initial_state().server.flatten()
    large = sum(tensor.numel() for tensor in start.values() if tensor.dim() >= 2)
    assert long_words.bytes_up - short_words.bytes_up == 3 * 2 * large > 3000
    for name, tensor in found.items():
        step = 2 * float(start[name].abs().max()) / (2**15 // 3) if tensor.dim() >= 2 else 1e-6
        assert float((tensor - plain[name]).abs().max()) <= 3 * step, name
    assert any(not torch.equal(found[name], whole[name]) for name in found)


def test_orchestra_learns_under_masks_what_it_learns_without(tmp_path: Path) -> None:
    """Its centroids are not averaged, and stay in the clear."""
    plain, _ = learnt(Run(Clients(tmp_path / "a"), ORCHESTRA))
    found, _ = learnt(Run(Clients(tmp_path / "b"), merge(ORCHESTRA, SECURE), secure=True))
    assert_alike(found, plain, 1e-5)


def test_survivors_are_confirmed_where_somebody_has_left_and_only_there(tmp_path: Path) -> None:
    clients = Clients(tmp_path, 4)
    run = Run(clients, merge(TEN, {**SECURE, "federation": {"rounds": 2}}), secure=True)
    learnt(run)
    assert not any("signature" in read_values(content, "sum") for content in clients.seen if "sum" in content.config_records)
    clients.lost = {"masked": [1]}
    clients.seen.clear()
    run.go(ServerState(1, run.federation.initial_state().server), until=2)
    assert sum("signature" in read_values(c, "sum") for c in clients.seen if "sum" in c.config_records) == 3


@pytest.mark.parametrize("step", ["masked", "alive"])
def test_ten_clients_with_one_killed_after_sharing_end_with_the_right_sum(tmp_path: Path, step: str) -> None:
    without = Clients(tmp_path / "a", 10)
    if step == "masked":
        without.lost = {"train": [4]}
    expected, _ = learnt(Run(without, TEN))
    clients = Clients(tmp_path / "b", 10)
    clients.lost = {step: [4], "alive": [4], "reveal": [4]}
    run = Run(clients, merge(TEN, SECURE), secure=True)
    found, record = learnt(run)
    assert_alike(found, expected, 1e-6)
    assert record.num_answered == (9 if step == "masked" else 10), "who leaves after its vector arrived is part of the sum"
    assert [failure.client_id for failure in record.failures] == ([4] if step == "masked" else [])


def test_three_of_ten_lost_below_the_threshold_is_a_clear_refusal_and_nothing_is_revealed(tmp_path: Path) -> None:
    clients = Clients(tmp_path, 10)
    clients.lost = {"masked": [1, 4, 7]}
    tree = merge(TEN, {"privacy": {"secure_aggregation": True, "secure_threshold": 0.8}, "federation": {"retries": 3}})
    run = Run(clients, tree, secure=True)
    sentence = r"7 of 10 clients sent a masked vector, and this masked sum needs 8: it is void, and nothing is revealed"
    with pytest.raises(UserError, match=sentence):
        run.go()
    assert {failure.client_id for failure in run.failures} == set(range(10))
    assert revealed_lines(clients) == []
    assert not any("seeds" in str(content.config_records.get("sum", "")) for content in clients.seen)


@attack(
    "A7", "Asks clients of one sum with two models, recipes, cohorts or nonces", "the others share nothing; the sum is void"
)
@pytest.mark.parametrize("change", [f"another {word}" for word in ("model", "recipe", "round", "cohort", "nonce", "weight")])
def test_clients_that_were_asked_for_different_things_share_nothing(tmp_path: Path, change: str) -> None:
    """With two models under one mask, the parts of the others would be known, and the sum would show the last one."""
    clients = Clients(tmp_path, 4)
    run = Run(clients, merge(SIMPLE, SECURE))
    requests = {number: masked_request(run, number) for number in range(3)}
    if change == "another recipe":
        other = Run(clients, merge(SIMPLE, {**SECURE, "training": {"local_epochs": 2}}))
        requests[0] = masked_request(other, 0)
    elif change == "another model":
        groups = requests[0].broadcast.groups
        zeros = {name: {key: 0 * t for key, t in group.items()} for name, group in groups.items()}
        requests[0] = replace(requests[0], broadcast=Payload(zeros))
    elif change == "another round":  # with another learning rate, and other draws
        requests[0] = replace(requests[0], round=1)
    else:
        changes = {"another cohort": {"cohort": [0, 1, 2, 3]}, "another nonce": {"nonce": "8" * 32}}
        requests[0] = masked_request(run, 0, **changes.get(change, {"max_weight": 1.0}))
    cards = cards_of(clients, requests)
    for number in (1, 2):
        with pytest.raises(UserError, match="client 0 was asked for something else than this one"):
            clients.handlers[number].sum_step(shares_question(cards))


@attack("A6", "Asks for a masked sum over few clients, or with a low threshold", "refused")
@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ({"cohort": [0, 1], "threshold": 2}, "at least 3 different clients"),
        ({"cohort": [1, 2, 3]}, "this one among them"),
        ({"cohort": [0, 1, 1]}, "at least 3 different clients"),
        ({"cohort": [0, 1, 2], "threshold": 2}, "at least 3 must stay, and the server wants 2"),
        ({"nonce": "7"}, "nonce is missing"),
        ({"max_weight": float("nan")}, "largest weight or its nonce is missing"),
    ],
)
def test_sums_that_would_show_single_clients_are_refused(tmp_path: Path, extra: dict[str, Any], word: str) -> None:
    clients = Clients(tmp_path)
    run = Run(clients, merge(SIMPLE, SECURE))
    with pytest.raises(ClientError, match=word):
        clients.handlers[0].answer(masked_request(run, 0, **extra))
    with pytest.raises(ClientError, match="the request of a masked sum is damaged"):
        clients.handlers[1].answer(replace(masked_request(run, 1), extra={}))


@attack("A5", "Sends a model, or anything else, to one client alone under masks", "refused")
def test_what_reaches_one_client_alone_is_refused_under_masks(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    asked = masked_request(Run(clients, merge(SIMPLE, SECURE)), 0)
    with pytest.raises(ClientError, match="under masks a model comes to all clients alike"):
        clients.handlers[0].answer(replace(asked, routed=asked.broadcast, broadcast=Payload()))
    hint = Payload({"hint": {"values": torch.ones(3)}})
    with pytest.raises(ClientError, match="this client alone was sent hint/values"):
        clients.handlers[0].answer(replace(asked, routed=hint))


def test_a_restart_or_a_long_wait_is_a_drop_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients(tmp_path)
    run = Run(clients, merge(SIMPLE, SECURE))
    cards = cards_of(clients, {number: masked_request(run, number) for number in range(3)})
    clients.restart(0)
    with pytest.raises(UserError, match="takes part in no such masked sum"):
        clients.handlers[0].sum_step(shares_question(cards))
    with pytest.raises(UserError, match="takes part in no such masked sum"):
        clients.handlers[1].sum_step({**shares_question(cards), "nonce": "9" * 32})
    monkeypatch.setattr(masked_sums, "LIFETIME", -1e9)
    with pytest.raises(UserError, match="takes part in no such masked sum"):
        clients.handlers[2].sum_step(shares_question(cards))


@attack("A8", "Asks for the sum of a round again over other clients, to subtract one from the other", "refused")
def test_a_round_is_revealed_again_over_the_same_clients_only(tmp_path: Path) -> None:
    """A server that lost its state asks again; over other clients, two sums would differ by one client."""
    clients = Clients(tmp_path, 4)
    run = Run(clients, merge(TEN, SECURE), secure=True)
    first, again = learnt(run)[0], learnt(run)[0]
    assert_alike(again, first, 1e-6)
    assert {tuple(line["survivors"]) for line in revealed_lines(clients)} == {(0, 1, 2, 3)}
    before = len(revealed_lines(clients))
    for step in ("masked", "train"):  # with and without a list of survivors to be signed
        clients.lost = {step: [3]}
        with pytest.raises(UserError, match="below the quorum"):
            learnt(run)
        assert len(revealed_lines(clients)) == before


def test_an_owner_can_want_more_clients_in_a_sum_than_stay(tmp_path: Path) -> None:
    clients = Clients(tmp_path, 4, require={"min_cohort": 4})
    run = Run(clients, merge(TEN, {**SECURE, "federation": {"rounds": 2}}), secure=True)
    learnt(run)
    clients.lost = {"masked": [0]}
    with pytest.raises(UserError, match="below the quorum"):
        run.go(ServerState(1, run.federation.initial_state().server), until=2)
    assert any("3 clients are left, and this masked sum needs 4" in failure.reason for failure in run.failures)


def test_what_left_under_masks_is_in_the_audit(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    learnt(Run(clients, merge(SIMPLE, SECURE), secure=True))
    lines = [json.loads(line) for line in (clients.directories[0].path / "audit.jsonl").read_text().splitlines()]
    vectors = [line for line in lines if "masked" in line["groups"]]
    assert len(vectors) == 1
    assert vectors[0]["masked"]
    sent = next(c for c in reversed(clients.seen) if "masked" in c)
    assert vectors[0]["groups"]["masked"][1] == sum(t.numel() for t in payload_of(sent, "masked").groups["masked"].values())
    assert lines[-1] == vectors[0]
    books = Books(clients.directories[0])
    books.audit.verify(books.ledger)
    file = books.audit.chain.path
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="lines were removed"):
        Books(clients.directories[0]).audit.verify(books.ledger)


def test_a_masked_vector_is_no_larger_than_the_owner_lets_leave(tmp_path: Path) -> None:
    clients = Clients(tmp_path, 4)
    clients.restart(1, resources={"max_upload": "1KiB"})
    run = Run(clients, merge(TEN, SECURE), secure=True)
    run.go(until=1)
    (failure,) = run.failures
    assert (failure.client_id, "resources.max_upload is 1KiB" in failure.reason) == (1, True)
    assert not any(line["groups"] for line in Books(clients.directories[1]).audit.chain.lines)


@attack("A6", "Chooses a recipe in which few clients have something to send, and the others add zeros", "refused")
def test_a_sum_in_which_few_clients_send_anything_is_refused(tmp_path: Path) -> None:
    clients = Clients(tmp_path, 4)
    for handler in clients.handlers[:2]:
        _send_nothing(handler)
    run = Run(clients, merge(TEN, SECURE), secure=True)
    with pytest.raises(UserError, match="2 clients have something to send for group 'encoder'"):
        run.go()
    assert revealed_lines(clients) == []


def _send_nothing(handler: Any) -> None:
    begin = handler._sums.begin

    def empty(run: str, asked: Request, update: Any, *more: Any) -> Any:
        return begin(run, asked, replace(update, weight=0.0, payload=Payload()), *more)

    handler._sums.begin = empty


@attack("B5", "Leaves a secure sum half-way, or sends garbage", "it alone is left out, down to two thirds of the clients")
def test_a_client_that_sends_garbage_costs_itself_alone(tmp_path: Path) -> None:
    clients = Clients(tmp_path, 4)
    honest = clients.handlers[2].sum_step

    def spoiled(values: dict[str, Any]) -> tuple[dict[str, Any], Payload]:
        told, payload = honest(values)
        return told, Payload({"masked": {"short": torch.zeros(3), "wide": torch.zeros(1)}}) if payload.groups else payload

    clients.handlers[2].sum_step = spoiled  # type: ignore[method-assign]
    _, record = learnt(Run(clients, merge(TEN, SECURE), secure=True))
    assert [failure.client_id for failure in record.failures] == [2]
    assert record.num_answered == 3


@attack("B4", "Claims a weight of millions in a secure sum", "counts as the largest weight of an honest client")
def test_weights_beyond_the_cap_count_as_the_cap(tmp_path: Path) -> None:
    """Four clients of 40, 52, 64 and 76 samples that claim millions: each counts as the largest that the server allows."""
    clients = Clients(tmp_path / "a", 4)
    run = Run(clients, merge(TEN, SECURE), secure=True)
    uniform, _ = learnt(Run(Clients(tmp_path / "b", 4), merge(TEN, {"aggregation": {"weighting": "uniform"}})))
    for handler in clients.handlers:
        _claim(handler, 1e6)
    found, _ = learnt(run)
    assert_alike(found, uniform, 1e-6)


def _claim(handler: Any, weight: float) -> None:
    begin = handler._sums.begin

    def claimed(run: str, asked: Request, update: Any, *more: Any) -> Any:
        return begin(run, asked, replace(update, weight=weight), *more)

    handler._sums.begin = claimed


@attack("A13", "Reads off the failure of a secure sum whether an update is large", "it tells nothing more, and each is counted")
def test_an_update_beyond_the_range_fails_before_the_sum_and_is_counted(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    run = Run(clients, merge(SIMPLE, {**SECURE, "training": {"learning_rate": 1e-2}, "federation": {"rounds": 4}}))
    for number in range(3):
        _scale(clients.handlers[0], 1e9)
        with pytest.raises(ClientError, match="its own log says why"):
            clients.handlers[0].answer(replace(masked_request(run, 0), round=number))
    with pytest.raises(ClientError, match="failed 3 times here"):
        clients.handlers[0].answer(replace(masked_request(run, 0), round=3))


def _scale(handler: Any, factor: float) -> None:
    begin = handler._sums.begin

    def scaled(run: str, asked: Request, update: Any, *more: Any) -> Any:
        large = {name: tensor * factor for name, tensor in update.payload.flatten().items()}
        return begin(run, asked, replace(update, payload=Payload.unflatten(large)), *more)

    handler._sums.begin = scaled


@attack("A8", "Compares masked vectors of two sums", "each sum has keys of its own, so they are unrelated")
def test_masked_words_of_two_rounds_are_independent(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    run = Run(clients, merge(SIMPLE, SECURE), secure=True)
    for _ in range(2):
        learnt(run)
    vectors = [payload_of(c, "masked").groups["masked"]["short"].double().numpy() for c in clients.seen if "masked" in c]
    for one, other in ((0, 3), (1, 4), (2, 5)):
        assert abs(np.corrcoef(vectors[one], vectors[other])[0, 1]) < 5 / len(vectors[0]) ** 0.5
