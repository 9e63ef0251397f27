"""Points that a client received from its neighbours: a buffer, and the client's data followed by the buffer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unisono.core.addressing import by_sender, parse
from unisono.core.client_data import ClientData, as_float
from unisono.core.forms import check_form
from unisono.core.payload import Form, Payload

log = logging.getLogger("unisono.client")
LOUDEST = 10.0
"""Largest number in a neighbour's series, as a multiple of the largest among one's own."""

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


def mail_form(input_shape: tuple[int, ...], most: int, with_rows: bool = False) -> dict[str, Form]:
    """Return the form of points that clients send each other.

    Args:
        input_shape: of a point.
        most: how many points.
        with_rows: send their numbers at the sender too.
    """
    points = {"points": Form(("points", *input_shape), most=most, dtype=None)}
    return points | ({"rows": Form(("points",), most=most, low=0, dtype=torch.int64)} if with_rows else {})


def usable_mail(
    received: Payload, forms: Mapping[str, Mapping[str, Form]], data: ClientData
) -> tuple[Payload, dict[str, float]]:
    """Return what was received without the mail that a client cannot learn from, and a metric for each who sent such.

    Nobody else can look into sealed mail. Points must be like the client's own: of the same type and shape, images in their
    range, series not much louder.

    Args:
        received: by whatever neighbours.
        forms: by group.
        data: the client's own.
    """
    reasons: dict[int, str] = {}
    found = [group for group in forms if group in received.groups]
    for group in found:
        form = {**forms[group], "points": _form_like(forms[group]["points"], data)}
        for sender, tensors in by_sender(received.groups[group]).items():
            try:
                check_form(group, tensors, form, {})
                if not len(tensors["points"]):
                    raise ValueError(f"{group}/points is empty")
            except ValueError as error:
                reasons[sender] = str(error)
    if not reasons:
        return received, {}
    groups = {
        group: {name: tensor for name, tensor in received.groups[group].items() if parse(name).sender not in reasons}
        for group in found
    }
    return received.with_groups(**groups), left_out(reasons)


def left_out(reasons: Mapping[int, str]) -> dict[str, float]:
    """Log why the mail of some neighbours is left out, and return a metric that names each of them.

    Args:
        reasons: by sender.
    """
    for sender, reason in reasons.items():
        log.warning("the mail of client %d is left out: %s", sender, reason)
    return {f"left_out.{sender}": 1.0 for sender in reasons}


def _form_like(form: Form, data: ClientData) -> Form:
    """Return the form of points with the type and the range of a client's own samples."""
    form = replace(form, dtype=data.samples.dtype)
    if not data.samples.is_floating_point():
        return form
    if data.samples.dim() == 4:
        return replace(form, low=0.0, high=1.0)
    loudest = LOUDEST * float(data.samples[data.indices].abs().max())
    return replace(form, low=-loudest, high=loudest)
