"""Secure sums as Flower messages: what both sides derive from a request, and how the steps after it travel.

The first step is the request to train, whose answer carries a card. The others are messages of type ``query.sum``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict

from unisono.core.context import Context
from unisono.core.method import Method
from unisono.core.payload import Payload, Reduce
from unisono.core.wire import to_bytes
from unisono.engines.flower.messages import check_texts, failure_of, payload_of, payload_record, read_values, values_content
from unisono.federation.declared import sent_shares
from unisono.federation.postprocess import CompressionConfig, PrivacyConfig
from unisono.privacy.masked_vector import Layout, Template, default_limits, narrow_limits
from unisono.privacy.ring import Ring, Words
from unisono.privacy.secure_sum import Card, Revealed, SumTerms, lowest_threshold

ACTION = "sum"
KIND = f"query.{ACTION}"
"""Type of the messages after the first."""
Values = Mapping[str, Any]


def masked_groups(method: Method, ctx: Context) -> list[str]:
    """Return the groups that clients mask in a phase: all that are averaged, whatever the server sent."""
    return [name for name, share in sent_shares(method, ctx).items() if share.reduce is Reduce.MEAN]


def threshold_of(privacy: PrivacyConfig, num_clients: int) -> int:
    """Return how many of so many clients must stay to the end of a sum."""
    return max(lowest_threshold(num_clients), math.ceil(privacy.secure_threshold * num_clients - 1e-9))


def sum_terms(run_spec: str, ctx: Context, broadcast: Payload, extra: Mapping[str, Any]) -> SumTerms:
    """Return everything that the clients of a sum must be asked alike; raise a ValueError if something is missing.

    Args:
        run_spec: recipe and facts of the run.
        ctx: seed, round and phase.
        broadcast: what all clients received.
        extra: small values of the request: cohort, threshold, nonce, largest weight.
    """
    try:
        cohort, threshold = tuple(sorted(int(client) for client in extra["cohort"])), int(extra["threshold"])
        if not 0 < float(extra["max_weight"]) < math.inf or len(str(extra["nonce"])) < 32:
            raise ValueError("its largest weight or its nonce is missing")
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"the request of a masked sum is damaged: {error}") from error
    asked = {
        "spec": hashlib.sha256(run_spec.encode()).hexdigest(),
        "model": hashlib.sha256(to_bytes(broadcast)).hexdigest(),
        "place": [ctx.seed, ctx.round, ctx.phase],
        "extra": dict(extra),
    }
    return SumTerms(asked, cohort, threshold)


def sum_layout(
    template: Template,
    metrics: Sequence[str],
    broadcast: Payload,
    num_clients: int,
    compression: CompressionConfig,
) -> Layout:
    """Return the places of all numbers in the vectors of a sum.

    Args:
        template: tensors that are summed.
        metrics: names of all clients' metrics.
        broadcast: what all clients received; the range of a large tensor depends on its values.
        num_clients: how many are summed.
        compression: with 8 bits, large tensors have words of 16 bits in place of 32.
    """
    short = compression.bits is not None
    limits = narrow_limits(broadcast) if short else default_limits(broadcast)
    return Layout(template, tuple(metrics), limits, Ring(16 if short else 32, num_clients), Ring(64, num_clients))


# --- messages


def step_content(step: str, nonce: str, **values: Any) -> RecordDict:
    """Return the server's message of a step."""
    return values_content(ACTION, {"step": step, "nonce": nonce, **values})


def reply_content(values: Values, payload: Payload) -> RecordDict:
    """Return a client's answer to a step."""
    content = values_content(ACTION, values)
    if payload.groups:
        content["masked"] = payload_record(payload)
    return content


def read_step(content: RecordDict) -> dict[str, Any]:
    """Return the values of a step, or of the answer to it; raise a ValueError with the reason if a client gives none."""
    check_texts(content)
    if (failure := failure_of(content)) is not None:
        raise ValueError(failure)
    return read_values(content, ACTION)


def read_masked(content: RecordDict, limit: int) -> list[Words]:
    """Return the masked vector of an answer; raise a ValueError if there is none."""
    found = payload_of(content, "masked", limit).groups.get("masked", {})
    if set(found) != {"short", "wide"}:
        raise ValueError("the answer holds no masked vector")
    parts = [found[name].numpy() for name in ("short", "wide")]
    return [part.view(np.dtype(f"<u{part.dtype.itemsize}")) for part in parts]


def masked_payload(words: Sequence[Words]) -> Payload:
    """Return a masked vector as it travels."""
    short, wide = (torch.from_numpy(part.view(np.dtype(f"<i{part.dtype.itemsize}"))) for part in words)
    return Payload({"masked": {"short": short, "wide": wide}})


def as_hex(parts: Mapping[int, bytes]) -> dict[str, str]:
    """Return bytes by client as JSON takes them."""
    return {str(client): data.hex() for client, data in parts.items()}


def from_hex(parts: Any) -> dict[int, bytes]:
    """Return what ``as_hex`` wrote."""
    return {int(client): bytes.fromhex(data) for client, data in dict(parts).items()}


def read_cards(values: Any) -> list[Card]:
    """Return the cards of a message."""
    return [Card.read(card) for card in values]


def read_revealed(values: Values) -> Revealed:
    """Return the shares that a client revealed."""
    return Revealed(from_hex(values["seeds"]), from_hex(values["keys"]))
