"""Points that a client received from its neighbours: a buffer, and the client's data followed by the buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unisono.core.client_data import ClientData, as_float

Buffer = Mapping[str, Tensor]
"""``points``, shape (num_points, *input_shape), their ``senders`` and their ``rows`` there, shape (num_points,) each."""


@dataclass(frozen=True)
class DataWithReceived(ClientData):
    """A client's own samples, followed by those it received.

    Args:
        received: like rows of ``samples``, shape (num_received, *input_shape).
    """

    received: Tensor = field(default_factory=lambda: torch.empty(0))

    def __len__(self) -> int:
        return len(self.indices) + len(self.received)

    def batch(self, positions: Tensor) -> Tensor:
        num_own = len(self.indices)
        is_own = positions < num_own
        joined = self.samples.new_empty((len(positions), *self.samples.shape[1:]))
        joined[is_own] = self.samples[self.indices[positions[is_own]]]
        joined[~is_own] = self.received[positions[~is_own] - num_own]
        return as_float(joined.to(self.device, non_blocking=True))


def make_buffer(offers: Mapping[int, Mapping[str, Tensor]], like: Tensor) -> dict[str, Tensor]:
    """Return all offers of a pull in one buffer.

    Args:
        offers: by sender, ``points`` and ``rows``.
        like: samples whose type and shape the points have.
    """
    senders = [torch.full((len(offer["rows"]),), sender) for sender, offer in offers.items()]
    return {
        "points": torch.cat([like[:0], *(offer["points"] for offer in offers.values())]),
        "rows": torch.cat([torch.empty(0, dtype=torch.int64), *(offer["rows"] for offer in offers.values())]),
        "senders": torch.cat([torch.empty(0, dtype=torch.int64), *senders]),
    }


def join_buffers(old: Buffer, new: Buffer) -> dict[str, Tensor]:
    """Return both buffers in one; a point that came before is not kept twice."""
    known = set(zip(old["senders"].tolist(), old["rows"].tolist(), strict=True))
    pairs = zip(new["senders"].tolist(), new["rows"].tolist(), strict=True)
    fresh = torch.tensor([pair not in known for pair in pairs], dtype=torch.bool)
    return {name: torch.cat([old[name], new[name][fresh]]) for name in new}
