"""Messages with points between neighbours, and the ledger of what went over each link.

The server carries them under the names of ``core/addressing.py`` until their receiver has fetched them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from unisono.core.addressing import address, parse
from unisono.data.graph import ClientGraph

PARTS = ("points", "rows")


def pack_messages(stack: Iterable[tuple[int, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Return the mail of all senders in one box, under names that tell its sender.

    Args:
        stack: by sender, tensors whose names tell the receiver.
    """
    return {
        address(parse(name).receiver, parse(name).name, sender=sender): tensor
        for sender, tensors in stack
        for name, tensor in tensors.items()
    }


def deliver(messages: Mapping[str, Tensor], receiver: int, senders: Collection[int]) -> dict[str, Tensor]:
    """Return what some senders send to a client, or to all their neighbours."""
    places = {name: parse(name) for name in messages}
    return {
        name: messages[name] for name, place in places.items() if place.sender in senders and place.receiver in (receiver, None)
    }


def messages_between(messages: Mapping[str, Tensor], sender: int, receiver: int) -> dict[str, Tensor]:
    """Return ``points`` and ``rows`` that one client sends to another, empty where it sends none."""
    names = {part: address(receiver, part, sender=sender) for part in PARTS}
    return {part: messages[name] for part, name in names.items() if name in messages}


def make_ledger(
    graph: ClientGraph, reserve: Mapping[str, Tensor], messages: Mapping[str, Tensor], point: Tensor
) -> dict[str, Tensor]:
    """Return the traffic of a round over each link in each direction: columns of equal length, shape (2 * number of links,).

    Args:
        graph: the links.
        reserve: the points that clients push to all their neighbours; empty after the first round.
        messages: what clients offer each other.
        point: any tensor of the type and shape of one point.
    """
    links = sorted([*graph.edges, *((b, a) for a, b in graph.edges)])
    pushed = torch.tensor(
        [len(reserve.get(address(None, "points", sender=sender), ())) for sender, _ in links], dtype=torch.int64
    )
    pulled = torch.tensor([len(messages_between(messages, *link).get("points", ())) for link in links], dtype=torch.int64)
    return {
        "senders": torch.tensor([sender for sender, _ in links], dtype=torch.int64),
        "receivers": torch.tensor([receiver for _, receiver in links], dtype=torch.int64),
        "pushed": pushed,
        "pulled": pulled,
        "bytes": (pushed + pulled) * point.numel() * point.element_size(),
    }
