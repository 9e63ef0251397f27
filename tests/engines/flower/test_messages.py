"""Requests and answers survive Flower's records, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

pytest.importorskip("flwr")

from tests.core.payloads import PAYLOADS, same
from unisono.core.context import Context
from unisono.core.payload import Payload, Update
from unisono.core.wire import to_bytes
from unisono.engines.flower.messages import (
    INLINE,
    RequestBuilder,
    answer_content,
    payload_of,
    payload_record,
    read_answer,
    read_request,
    read_values,
    values_content,
)
from unisono.federation.client_turn import ClientResult, ClientStats


@given(PAYLOADS)
def test_a_payload_comes_back(payload: Payload) -> None:
    from flwr.app import RecordDict

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


def test_a_large_payload_comes_back_in_chunks() -> None:
    from flwr.app import ArrayRecord, RecordDict

    payload = Payload({"a": {"x": torch.arange(INLINE, dtype=torch.float32)}})
    record = payload_record(payload)
    assert isinstance(record, ArrayRecord)
    assert same(payload_of(RecordDict({"update": record}), "update"), payload)
