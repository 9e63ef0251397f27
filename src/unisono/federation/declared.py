"""Check of updates against the method's declared shares: nothing else may leave a client."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import Method
from unisono.core.payload import Payload, Reduce, Reveals, Share, Tensors, Update


class ConsentConfig(Section):
    """Consent of the data's owners beyond model updates and statistics: the table ``[consent]``."""

    allow_raw_representations: bool = Field(False, description="representations of single samples may leave a client")
    share_data: bool = Field(False, description="samples themselves may leave a client")


def check_consent(shares: Mapping[str, Share], consent: ConsentConfig) -> None:
    """Refuse a method whose declared shares reveal more than the config allows."""
    needed = {
        Reveals.REPRESENTATIONS: ("allow_raw_representations", consent.allow_raw_representations),
        Reveals.DATA: ("share_data", consent.share_data),
    }
    for group, share in shares.items():
        switch, given = needed.get(share.reveals, ("", True))
        if not given:
            raise UserError(
                f"This method sends {share.reveals.value} of its clients (group {group!r}); "
                f"set consent.{switch} = true if their owners agree."
            )


def sent_shares(method: Method, ctx: Context) -> dict[str, Share]:
    """Return the declared shares that an update of this round and phase may carry."""
    return {group: method.shares[group] for group in method.groups_sent(ctx)}


def check_update(update: Update, shares: Mapping[str, Share], received: Payload) -> None:
    """Raise a ValueError with one sentence if the update holds anything undeclared, misshapen or not finite."""
    if update.payload.scalars:
        raise ValueError(f"an update carries no scalars, got {sorted(update.payload.scalars)}")
    if not (math.isfinite(update.weight) and update.weight >= 0):
        raise ValueError(f"an update's weight is finite and not negative, got {update.weight}")
    for name, value in update.metrics.items():
        if not math.isfinite(value):
            raise ValueError(f"metric {name} is {value}")
    for group, tensors in update.payload.groups.items():
        if group not in shares:
            raise ValueError(f"group {group!r} is not among those declared for this phase ({', '.join(shares) or 'none'})")
        if shares[group].reduce is Reduce.ROWS:
            _check_shapes(group, tensors, own_rows(group, received, update.client_id))
        elif shares[group].reduce is Reduce.MEAN and group in received.groups:
            _check_shapes(group, tensors, received.groups[group])
    check_finite(update.payload)


def own_rows(group: str, received: Payload, client_id: int) -> Tensors:
    """Return the rows of one client in a ROWS group that was sent to it; raise a ValueError if it has none there."""
    if group not in received.groups:
        raise ValueError(f"group {group!r} holds rows of tensors that were not sent to the client")
    for name, tensor in received.groups[group].items():
        if tensor.dim() == 0 or client_id >= len(tensor):
            raise ValueError(f"{group}/{name} of shape {tuple(tensor.shape)} has no row for client {client_id}")
    return {name: tensor[client_id] for name, tensor in received.groups[group].items()}


def _check_shapes(group: str, tensors: Tensors, expected: Tensors) -> None:
    if tensors.keys() != expected.keys():
        name = sorted(tensors.keys() ^ expected.keys())[0]
        raise ValueError(f"{group}/{name} is {'missing' if name in expected else 'unknown'}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ValueError(f"{group}/{name} has shape {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}")


def check_finite(payload: Payload) -> None:
    """Raise a ValueError that names the first tensor with a value that is not finite."""
    floats = [(name, tensor) for name, tensor in payload.tensors() if tensor.is_floating_point() and tensor.numel()]
    if not floats:
        return
    # No sum that holds an infinity or a NaN is finite, and a sum is the cheapest pass; one that overflows is looked at below.
    sums = torch.stack([tensor.detach().sum().float() for _, tensor in floats])
    if not bool(torch.isfinite(sums).all()):
        for name, tensor in floats:
            if not bool(_all_finite(tensor)):
                raise ValueError(f"{name} holds a value that is not finite")


def _all_finite(tensor: Tensor) -> Tensor:
    return torch.isfinite(tensor).all()
