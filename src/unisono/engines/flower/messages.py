"""Requests and answers as Flower messages: payloads as the bytes of ``core/wire.py``, everything else as plain values.

A large payload is an array of bytes, which Flower cuts into chunks that its transport takes. Since Flower addresses objects by
their hash, what all clients receive is a record of its own, and sent to the link once.

Payloads carry a checksum of their own. The texts of a message have one together, ``texts``, in the first record with a text.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from unisono.core.config import parse_json
from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.payload import Payload, Update
from unisono.core.wire import from_bytes, to_bytes
from unisono.federation.client_turn import ClientResult, ClientStats
from unisono.federation.declared import LARGEST

SERIALISATION = "unisono.payload"
INLINE = 2**21
"""Bytes up to which a payload is one object: every object costs Flower a request or two on each stretch of its way."""
EMPTY = Payload()
MOST_REASON, MOST_DETAILS = 300, 20_000
"""Characters of a client's failure that are kept, and of its traceback, which simulated clients send."""
MOST_METRICS, MOST_NAME = 32, 64
MOST_COUNTED = 1e12
MOST_TEXTS = 2**22
"""Characters of all texts of a message: reading JSON takes many times its length in memory."""
HASH = re.compile("[0-9a-f]{64}")
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Errors that reading a client's words can raise, whatever they are."""
TEXTS = "texts"
"""The key of the checksum of all texts of a message."""
FAILED = "the client failed; its own log says why"
"""All that a server hears of a failure that nobody foresaw: its text could name paths, or quote samples."""


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
    return from_bytes(value, of_others=True)


DAMAGED = "the texts of a message were damaged on their way (their checksum is wrong)"


class DamagedMessageError(UserError, ValueError):
    """A message whose texts are not those that were sent."""


def with_checksum(content: RecordDict) -> RecordDict:
    """Add the checksum of its texts to a message: in the first record that holds a text, since each record travels alone."""
    total, name = _texts_sum(content), _first_text(content)
    if name is None:
        content[TEXTS] = ConfigRecord({TEXTS: total})
    else:
        content.config_records[name][TEXTS] = total
    return content


def check_texts(content: RecordDict) -> None:
    """Raise a ValueError unless the texts of a message are those that were sent."""
    texts = (value for record in content.config_records.values() for value in record.values() if isinstance(value, str))
    length = sum(map(len, texts))
    if length > MOST_TEXTS:
        raise ValueError(f"the texts of a message have {length} characters, and {MOST_TEXTS} are the most")
    name = _first_text(content) or TEXTS
    told = content.config_records[name].get(TEXTS) if name in content.config_records else None
    if not isinstance(told, int):
        raise ValueError("the message carries no checksum of its texts: both sides need the same version of unisono")
    if told != _texts_sum(content):
        raise DamagedMessageError(DAMAGED)


def _first_text(content: RecordDict) -> str | None:
    records = content.config_records
    return next((name for name in sorted(records) if any(isinstance(value, str) for value in records[name].values())), None)


def _texts_sum(content: RecordDict) -> int:
    records = content.config_records
    texts = [[name, key, value] for name in records for key, value in records[name].items() if isinstance(value, str)]
    return zlib.crc32(json.dumps(sorted(texts)).encode())


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
        return with_checksum(content)


def read_request(content: RecordDict) -> Request:
    """Return the request that ``RequestBuilder.build`` wrote; raise a ValueError if its place is no such thing."""
    check_texts(content)
    place = parse_json(str(content.config_records["place"]["place"]))
    seed, number, phase, client = (place[name] for name in ("seed", "round", "phase", "client"))
    if not isinstance(phase, str) or any(type(value) is not int for value in (seed, number, client)):
        raise ValueError("a request names seed, round and client by whole numbers, and its phase by a word")
    return Request(
        seed,
        number,
        phase,
        client,
        str(content.config_records["terms"]["terms"]),
        payload_of(content, "broadcast"),
        payload_of(content, "routed"),
        payload_of(content, "local"),
        parse_json(str(content.config_records["place"]["extra"])),
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
    return with_checksum(content)


def failure_content(reason: str, details: str = "") -> RecordDict:
    """Return the message of a client that could not answer."""
    return with_checksum(RecordDict({"failure": ConfigRecord({"reason": reason, "details": details})}))


def read_answer(
    content: RecordDict, received: Payload, ctx: Context, limit: int | None = None, local_limit: int | None = None
) -> ClientResult:
    """Return a client's answer; raise a ClientError that says why it is none.

    Sizes are counted here and not taken from the client.

    Args:
        content: the message's records.
        received: what the client was sent.
        ctx: names round, phase and client.
        limit: most bytes to read of an update.
        local_limit: most bytes to read of a local state; None for as many.
    """
    try:
        check_texts(content)
        if (reason := failure_of(content)) is not None:
            raise ClientError(ctx.round, ctx.phase, ctx.client_id, reason, _details(content))
        told = parse_json(str(content.config_records["answer"]["answer"]))
        if told["client"] != ctx.client_id:
            raise ValueError(f"the answer is client {told['client']}'s")
        if len(told["metrics"]) > MOST_METRICS or any(len(str(name)) > MOST_NAME for name in told["metrics"]):
            raise ValueError(f"an answer has at most {MOST_METRICS} metrics, with names of at most {MOST_NAME} characters")
        metrics = {str(name): _finite(f"metric {name}", value) for name, value in told["metrics"].items()}
        payload = payload_of(content, "update", limit)
        update = Update(ctx.client_id, _finite("the weight", told["weight"]), payload, metrics)
        local = payload_of(content, "local", limit if local_limit is None else local_limit)
        samples = _number("the number of samples", told["samples"])
        seconds = _number("the time", told["seconds"])
    except UNREADABLE as error:
        reason = told_text(f"{type(error).__name__}: {error}", MOST_REASON)
        raise ClientError(ctx.round, ctx.phase, ctx.client_id, reason) from error
    owner = _owner(told.get("owner"))
    stats = ClientStats(ctx.client_id, int(samples), received.num_bytes, payload.num_bytes, seconds, metrics, owner)
    card = told.get("card")
    return ClientResult(update, local, stats, card if isinstance(card, dict) else None)


def failure_of(content: RecordDict) -> str | None:
    """Return why a client could not answer, as logs and pages can take it; None if it did."""
    if "failure" not in content.config_records:
        return None
    return told_text(content.config_records["failure"].get("reason", "no reason given"), MOST_REASON)


def _details(content: RecordDict) -> str:
    return told_text(content.config_records["failure"].get("details", ""), MOST_DETAILS, lines=True)


def told_text(value: Any, most: int, lines: bool = False) -> str:
    """Return a client's words without what could fill a log or control a terminal.

    Args:
        value: what came.
        most: characters that are kept.
        lines: whether ends of lines are kept.
    """
    return "".join(c for c in str(value)[:most] if c.isprintable() or (lines and c == "\n"))


def values_content(name: str, values: Mapping[str, Any]) -> RecordDict:
    """Return plain values under a name; ``read_values`` undoes it."""
    return with_checksum(RecordDict({name: ConfigRecord({"values": json.dumps(dict(values))})}))


def read_values(content: RecordDict, name: str) -> dict[str, Any]:
    """Return what ``values_content`` wrote; raise a ValueError if there is none."""
    check_texts(content)
    try:
        return dict(parse_json(str(content.config_records[name]["values"])))
    except (LookupError, TypeError) as error:
        raise ValueError(f"the message holds no {name!r}") from error


def _finite(what: str, value: Any) -> float:
    number = float(value)
    if not abs(number) <= LARGEST:  # also for NaN; sums over clients stay finite too
        raise ValueError(f"{what} is {number:g}")
    return number


def _number(what: str, value: Any) -> float:
    """Return what a client counted or measured, which only logs and pages read."""
    number = _finite(what, value)
    if not 0 <= number <= MOST_COUNTED:
        raise ValueError(f"{what} is {number:g}, and not between 0 and {MOST_COUNTED:g}")
    return number


def _owner(value: Any) -> dict[str, Any]:
    """Return what a client says about its own rules, if it has the form that clients give it."""
    match value:
        case {"policy": str(policy), "ledger": [int(number), str(head)]} if HASH.fullmatch(policy) and HASH.fullmatch(head):
            return {"policy": policy, "ledger": [number, head]} if 0 <= number <= MOST_COUNTED else {}
    return {}


def _is_filled(payload: Payload) -> bool:
    return bool(payload.groups or payload.scalars)
