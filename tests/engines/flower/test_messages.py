"""Requests and answers survive Flower's records, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, RecordDict

from tests.attacks import attack
from tests.core.payloads import PAYLOADS, same
from unisono.core.context import Context
from unisono.core.errors import ClientError
from unisono.core.payload import Payload, Update
from unisono.core.wire import to_bytes
from unisono.deploy.server import MOST_LOCAL
from unisono.engines.flower.messages import (
    INLINE,
    TEXTS,
    RequestBuilder,
    answer_content,
    failure_content,
    payload_of,
    payload_record,
    read_answer,
    read_request,
    read_values,
    values_content,
    with_checksum,
)
from unisono.federation.client_turn import ClientResult, ClientStats


@given(PAYLOADS)
def test_a_payload_comes_back(payload: Payload) -> None:
    content = RecordDict({"update": payload_record(payload)})
    assert same(payload_of(content, "update"), payload)
    assert same(payload_of(content, "nothing"), Payload())


def test_a_request_comes_back() -> None:
    broadcast, routed = Payload({"a": {"x": torch.ones(2)}}), Payload({"b": {"y": torch.zeros(1)}}, {"n": 3})
    builder = RequestBuilder(Context(5, 7, "train"), "terms", broadcast, {"nonce": "n"})
    request = read_request(builder.build(4, routed, Payload(scalars={"state": "s"})))
    assert (request.seed, request.round, request.phase, request.client_id, request.run_spec) == (5, 7, "train", 4, "terms")
    assert to_bytes(request.received) == to_bytes(broadcast.merge(routed))
    assert request.local.scalars == {"state": "s"}
    assert request.extra == {"nonce": "n"}


def test_what_everybody_gets_is_one_object() -> None:
    builder = RequestBuilder(Context(0), "terms", Payload({"a": {"x": torch.ones(9)}}))
    first, second = builder.build(0), builder.build(1)
    assert first["broadcast"].object_id == second["broadcast"].object_id
    assert first["broadcast"] is second["broadcast"]


def test_an_answer_comes_back_with_sizes_counted_here() -> None:
    update = Update(2, 9.0, Payload({"a": {"x": torch.arange(3.0)}}), {"loss": 0.5})
    answer = ClientResult(update, Payload(scalars={"n": 1}), ClientStats(2, 9, 123456, 123456, 1.5, {"loss": 0.5}))
    received = Payload({"a": {"x": torch.zeros(5)}})
    found = read_answer(answer_content(answer), received, Context(0, 1, "train", 2))
    assert to_bytes(found.update.payload) == to_bytes(update.payload)
    assert (found.update.weight, found.update.metrics, found.local.scalars) == (9.0, {"loss": 0.5}, {"n": 1})
    assert (found.stats.bytes_down, found.stats.bytes_up, found.stats.num_samples) == (20, 12, 9)


def test_values_come_back_or_say_they_are_missing() -> None:
    content = values_content("question", {"shape": [1, 2]})
    assert read_values(content, "question") == {"shape": [1, 2]}
    with pytest.raises(ValueError, match="holds no 'scores'"):
        read_values(content, "scores")


def _messages() -> dict[str, tuple[Callable[[], RecordDict], Callable[[RecordDict], object]]]:
    """One message of each kind, and its reader."""
    update = Update(2, 9.0, Payload({"a": {"x": torch.arange(3.0)}}), {"loss": 0.5})
    stats = ClientStats(2, 9, 1, 1, 1.5, {}, {"policy": "p" * 64})
    received, ctx = Payload({"a": {"x": torch.zeros(3)}}), Context(0, 1, "train", 2)
    return {
        "request": (lambda: RequestBuilder(ctx, '{"lr": 0.1}', received, {"nonce": "n"}).build(2), read_request),
        "answer": (
            lambda: answer_content(ClientResult(update, Payload(), stats, {"key": "k"})),
            lambda content: read_answer(content, received, ctx),
        ),
        "failure": (lambda: failure_content("no data", "trace"), lambda content: read_answer(content, received, ctx)),
        "values": (lambda: values_content("question", {"shape": [1, 2]}), lambda content: read_values(content, "question")),
    }


@pytest.mark.parametrize("kind", ["request", "answer", "failure", "values"])
def test_a_flipped_bit_in_any_text_is_noticed_and_said(kind: str) -> None:
    make, read = _messages()[kind]
    places = [
        (name, key, position)
        for name, record in make().config_records.items()
        for key, value in record.items()
        if isinstance(value, str)
        for position in range(len(value))
    ]
    assert len(places) > 10
    for name, key, position in places:
        content = make()
        text = str(content.config_records[name][key])
        content.config_records[name][key] = text[:position] + chr(ord(text[position]) ^ 1) + text[position + 1 :]
        with pytest.raises((ValueError, ClientError), match="damaged on their way"):
            read(content)


def test_a_message_without_a_checksum_is_refused() -> None:
    content = values_content("question", {"shape": [1, 2]})
    del content.config_records["question"][TEXTS]
    with pytest.raises(ValueError, match="no checksum of its texts: both sides need the same version"):
        read_values(content, "question")


@attack("B8", "Answers with a text that is nested a hundred thousand times", "refused as unreadable; the run goes on")
def test_a_text_that_is_nested_too_deeply_is_unreadable() -> None:
    deep = "[" * 100_000
    answer = with_checksum(RecordDict({"answer": ConfigRecord({"answer": deep})}))
    with pytest.raises(ClientError, match="nested too deeply"):
        read_answer(answer, Payload(), Context(0, 0, "train", 0))
    scores = with_checksum(RecordDict({"scores": ConfigRecord({"values": deep})}))
    with pytest.raises(ValueError, match="nested too deeply"):
        read_values(scores, "scores")


@attack("B8", "Sends a local state of any size for the server to keep in every checkpoint", "refused beyond 16 KiB")
def test_a_local_state_has_a_size_where_only_its_name_travels() -> None:
    update = Update(2, 9.0, Payload({"a": {"x": torch.zeros(3)}}), {})
    answer = ClientResult(update, Payload({"state": {"x": torch.zeros(5000)}}), ClientStats(2, 9, 1, 1, 1.5, {}))
    content, ctx = answer_content(answer), Context(0, 1, "train", 2)
    assert read_answer(content, Payload(), ctx).local.groups
    with pytest.raises(ClientError, match=r"more than the 16384 that are read of one client"):
        read_answer(content, Payload(), ctx, None, MOST_LOCAL)


def test_a_large_payload_comes_back_in_chunks() -> None:
    from flwr.app import ArrayRecord, RecordDict

    payload = Payload({"a": {"x": torch.arange(INLINE, dtype=torch.float32)}})
    record = payload_record(payload)
    assert isinstance(record, ArrayRecord)
    assert same(payload_of(RecordDict({"update": record}), "update"), payload)
