"""Requests and answers as Flower messages: payloads as the bytes of ``core/wire.py``, everything else as plain values.

A large payload is an array of bytes, which Flower cuts into chunks that its transport takes. Since Flower addresses objects by
their hash, what all clients receive is a record of its own, and sent to the link once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from unisono.core.context import Context
from unisono.core.errors import ClientError
from unisono.core.payload import Payload, Update
from unisono.core.wire import from_bytes, to_bytes
from unisono.federation.client_turn import ClientResult, ClientStats

SERIALISATION = "unisono.payload"
INLINE = 2**21
"""Bytes up to which a payload is one object: every object costs Flower a request or two on each stretch of its way."""
EMPTY = Payload()


@dataclass(frozen=True)
class Request:
    """Request to a client.

    Args:
        seed: the run's.
        round: from 0.
        phase: of the round.
        client_id: who is asked.
        run_spec: what the client must know of the run, the same text in every request.
        broadcast: what all clients receive.
        routed: what only this one receives.
        local: its local state, or whatever tells it which one to take.
        extra: small values beside it.
    """

    seed: int
    round: int
    phase: str
    client_id: int
    run_spec: str
    broadcast: Payload = EMPTY
    routed: Payload = EMPTY
    local: Payload = EMPTY
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def received(self) -> Payload:
        """Payload that the client's step reads."""
        return self.broadcast.merge(self.routed) if _is_filled(self.routed) else self.broadcast

    def context(self, device: torch.device) -> Context:
        """Return the context of the client's step."""
        return Context(self.seed, self.round, self.phase, self.client_id, device)


def payload_record(payload: Payload) -> ConfigRecord | ArrayRecord:
    """Return a payload as a record: one object if it is small, else an array that Flower cuts into chunks."""
    data = to_bytes(payload)
    if len(data) <= INLINE:
        return ConfigRecord({"payload": data})
    return ArrayRecord({"payload": Array("uint8", (len(data),), SERIALISATION, data)})


def payload_of(content: RecordDict, name: str, limit: int | None = None) -> Payload:
    """Return the payload of a record, empty where there is none.

    Args:
        content: the message's records.
        name: of the record.
        limit: most bytes to read; a ValueError beyond it.
    """
    if name not in content:
        return EMPTY
    record = content[name]
    if list(record) != ["payload"]:
        raise ValueError(f"record {name!r} must hold one value called 'payload', got {list(record)[:5]}")
    value = record["payload"]
    if isinstance(value, Array):
        if value.stype != SERIALISATION:
            raise ValueError(f"record {name!r} must be serialised as {SERIALISATION!r}, got {value.stype!r}")
        value = value.data
    if not isinstance(value, bytes):
        raise ValueError(f"record {name!r} must hold bytes, got {type(value).__name__}")
    if limit is not None and len(value) > limit:
        raise ValueError(f"{len(value)} bytes are more than the {limit} that are read of one client")
    return from_bytes(value)


class RequestBuilder:
    """Requests of one phase, with what all of them carry encoded once.

    Args:
        ctx: round and phase.
        run_spec: see Request.
        broadcast: see Request.
        extra: see Request.
    """

    def __init__(self, ctx: Context, run_spec: str, broadcast: Payload, extra: Mapping[str, Any] | None = None) -> None:
        self._ctx = ctx
        self._run_spec = ConfigRecord({"terms": run_spec})
        self._broadcast = payload_record(broadcast)
        self._extra = json.dumps(dict(extra or {}))

    def build(self, client_id: int, routed: Payload = EMPTY, local: Payload = EMPTY) -> RecordDict:
        """Return the request of one client."""
        place = {"seed": self._ctx.seed, "round": self._ctx.round, "phase": self._ctx.phase, "client": client_id}
        content = RecordDict(
            {
                "place": ConfigRecord({"place": json.dumps(place), "extra": self._extra}),
                "terms": self._run_spec,
                "broadcast": self._broadcast,
            }
        )
        for name, payload in (("routed", routed), ("local", local)):
            if _is_filled(payload):
                content[name] = payload_record(payload)
        return content


def read_request(content: RecordDict) -> Request:
    """Return the request that ``RequestBuilder.build`` wrote."""
    place = json.loads(str(content.config_records["place"]["place"]))
    return Request(
        place["seed"],
        place["round"],
        place["phase"],
        place["client"],
        str(content.config_records["terms"]["terms"]),
        payload_of(content, "broadcast"),
        payload_of(content, "routed"),
        payload_of(content, "local"),
        json.loads(str(content.config_records["place"]["extra"])),
    )


def answer_content(answer: ClientResult) -> RecordDict:
    """Return a client's answer."""
    update, stats = answer.update, answer.stats
    told = {
        "client": update.client_id,
        "weight": update.weight,
        "metrics": dict(update.metrics),
        "samples": stats.num_samples,
        "seconds": stats.seconds,
        "owner": dict(stats.owner),
        "card": None if answer.card is None else dict(answer.card),
    }
    content = RecordDict({"answer": ConfigRecord({"answer": json.dumps(told)}), "update": payload_record(update.payload)})
    if _is_filled(answer.local):
        content["local"] = payload_record(answer.local)
    return content


def failure_content(reason: str, details: str = "") -> RecordDict:
    """Return the message of a client that could not answer."""
    return RecordDict({"failure": ConfigRecord({"reason": reason, "details": details})})


def read_answer(content: RecordDict, received: Payload, ctx: Context, limit: int | None = None) -> ClientResult:
    """Return a client's answer; raise a ClientError that says why it is none.

    Sizes are counted here and not taken from the client.

    Args:
        content: the message's records.
        received: what the client was sent.
        ctx: names round, phase and client.
        limit: most bytes to read of an update, and of a local state.
    """
    if "failure" in content.config_records:
        failure = content.config_records["failure"]
        reason, details = str(failure.get("reason", "no reason given")), str(failure.get("details", ""))
        raise ClientError(ctx.round, ctx.phase, ctx.client_id, reason, details)
    try:
        told = json.loads(str(content.config_records["answer"]["answer"]))
        if told["client"] != ctx.client_id:
            raise ValueError(f"the answer is client {told['client']}'s")
        metrics = {str(name): _finite(f"metric {name}", value) for name, value in told["metrics"].items()}
        payload = payload_of(content, "update", limit)
        update = Update(ctx.client_id, _finite("the weight", told["weight"]), payload, metrics)
        local = payload_of(content, "local", limit)
        samples, seconds = int(told["samples"]), _finite("the time", told["seconds"])
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ClientError(ctx.round, ctx.phase, ctx.client_id, reason) from error
    owner = _owner(told.get("owner"))
    stats = ClientStats(ctx.client_id, samples, received.num_bytes, payload.num_bytes, seconds, metrics, owner)
    card = told.get("card")
    return ClientResult(update, local, stats, card if isinstance(card, dict) else None)


def values_content(name: str, values: Mapping[str, Any]) -> RecordDict:
    """Return plain values under a name; ``read_values`` undoes it."""
    return RecordDict({name: ConfigRecord({"values": json.dumps(dict(values))})})


def read_values(content: RecordDict, name: str) -> dict[str, Any]:
    """Return what ``values_content`` wrote; raise a ValueError if there is none."""
    try:
        return dict(json.loads(str(content.config_records[name]["values"])))
    except (LookupError, TypeError) as error:
        raise ValueError(f"the message holds no {name!r}") from error


def _finite(what: str, value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}")
    return number


def _owner(value: Any) -> dict[str, Any]:
    """Return what a client says about its own rules, if it has the form that clients give it."""
    match value:
        case {"policy": str(policy), "ledger": [int(number), str(head)]} if len(policy) == len(head) == 64:
            return {"policy": policy, "ledger": [number, head]}
    return {}


def _is_filled(payload: Payload) -> bool:
    return bool(payload.groups or payload.scalars)
