"""Names of tensors that clients send each other: who sends a tensor, and who may read it.

``3>5.points`` is what client 3 sends to client 5, ``>5.points`` the same before anybody has noted the sender, and ``3>.points``
what client 3 sends to all its neighbours. Exchange methods name their tensors so, and a client's encryption reads the names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

_PATTERN = re.compile(r"(\d{0,9})>(\d{0,9})\.(.+)", re.DOTALL)


@dataclass(frozen=True)
class Address:
    """The parts of a tensor's name.

    Args:
        name: the name without the address.
        sender: the client that sends it, None where the name does not say.
        receiver: the client that it is for, None for all neighbours.
    """

    name: str
    sender: int | None = None
    receiver: int | None = None


def address(receiver: int | None, name: str, *, sender: int | None = None) -> str:
    """Return the name of a tensor for a client, or for all neighbours of its sender where that is None."""
    return f"{'' if sender is None else sender}>{'' if receiver is None else receiver}.{name}"


def parse(name: str) -> Address:
    """Return the parts of a tensor's name; one without an address names neither sender nor receiver."""
    match = _PATTERN.fullmatch(name)
    if match is None:
        return Address(name)
    sender, receiver, rest = match.groups()
    return Address(rest, int(sender) if sender else None, int(receiver) if receiver else None)


def by_sender(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Return tensors by sender, in ascending order, and then by their names without the address."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        parts = parse(name)
        if parts.sender is None:
            raise ValueError(f"the tensor {name!r} does not name its sender")
        found.setdefault(parts.sender, {})[parts.name] = tensor
    return dict(sorted(found.items()))
