"""Check of updates against the method's declared shares: nothing else may leave a client."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import DivergedError, UserError
from unisono.core.forms import check_form, check_mail, check_names
from unisono.core.method import Method
from unisono.core.payload import Payload, Reduce, Reveals, Share, Tensors, Update
from unisono.core.wire import lay_out

MOST_NAME = 256
"""Characters in the name of a tensor."""
LARGEST = 1e18
"""Largest number in an update; the square of a larger one, or its product with a weight, may overflow 32 bits."""
SMALL = 1 << 16
"""Numbers of a tensor up to which it is checked together with others."""
RECORD_KEYS = frozenset(("round", "asked", "answered", "bytes_down", "bytes_up", "client", "phase", "samples"))
"""Names in the logs of a run that no metric may have."""


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
    _check_number("the weight", update.weight)
    if update.weight < 0:
        raise ValueError(f"the weight is negative, {update.weight}")
    for name, value in update.metrics.items():
        check_metric_name(name)
        _check_number(f"metric {name}", value)
        if abs(value) > LARGEST:
            raise DivergedError(f"metric {name} is {value:.2g}, and {LARGEST:.0g} is the most")
    lay_out(update.payload)
    for group, tensors in update.payload.groups.items():
        if group not in shares:
            raise ValueError(f"group {group!r} is not among those declared for this phase ({', '.join(shares) or 'none'})")
        if any(len(name) > MOST_NAME for name in tensors):
            raise ValueError(f"group {group!r} has a tensor whose name has more than {MOST_NAME} characters")
        if shares[group].reveals is Reveals.DATA and any(tensor.dim() == 0 for tensor in tensors.values()):
            raise ValueError(f"group {group!r} holds samples, and has a tensor without rows")
        if shares[group].reduce is Reduce.ROWS:
            _check_shapes(group, tensors, own_rows(group, received, update.client_id))
        elif shares[group].reduce is Reduce.MEAN and group in received.groups:
            _check_shapes(group, tensors, received.groups[group])
    check_finite(update.payload, LARGEST)
    lengths = {name: len(tensor) for name, tensor in received.tensors() if tensor.dim()}
    for group, tensors in update.payload.groups.items():
        share = shares[group]
        if share.form is not None:
            check = check_mail if share.reveals is Reveals.DATA else check_form
            check(group, tensors, share.form, lengths)


def check_weight(update: Update, most: float) -> None:
    """Raise a ValueError if an update weighs more than its client may: one client would take over the mean."""
    if update.weight > most:
        raise ValueError(f"an update's weight is at most {most:g} for a client of this size, got {update.weight:g}")


def check_metric_name(name: str) -> None:
    """Raise a ValueError if a metric would overwrite something else in the logs."""
    if not isinstance(name, str) or name in RECORD_KEYS or name.startswith("probe."):
        raise ValueError(f"a metric cannot be called {name!r}, which logs use for something else: choose another name")
    if not name.isprintable() or not name.strip():
        raise ValueError(f"a metric's name consists of printable characters, got {name!r}")


def _check_number(what: str, value: object) -> None:
    if not isinstance(value, int | float):
        raise ValueError(f"{what} must be a number, got {type(value).__name__}: tensors and arrays have item()")
    if not math.isfinite(value):
        raise DivergedError(f"{what} is {value}")


def own_rows(group: str, received: Payload, client_id: int) -> Tensors:
    """Return the rows of one client in a ROWS group that was sent to it; raise a ValueError if it has none there."""
    if group not in received.groups:
        raise ValueError(f"group {group!r} holds rows of tensors that were not sent to the client")
    for name, tensor in received.groups[group].items():
        if tensor.dim() == 0 or client_id >= len(tensor):
            raise ValueError(f"{group}/{name} of shape {tuple(tensor.shape)} has no row for client {client_id}")
    return {name: tensor[client_id] for name, tensor in received.groups[group].items()}


def _check_shapes(group: str, tensors: Tensors, expected: Tensors) -> None:
    check_names(group, tensors, expected)
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ValueError(f"{group}/{name} has shape {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}")
        if tensor.dtype != expected[name].dtype:
            raise ValueError(f"{group}/{name} has type {tensor.dtype}, expected {expected[name].dtype}")


def check_finite(payload: Payload, largest: float = math.inf) -> None:
    """Raise a DivergedError that names the first tensor with a value that is not finite, or larger than allowed."""
    floats = [(name, tensor) for name, tensor in payload.tensors() if tensor.is_floating_point() and tensor.numel()]
    if not floats:
        return
    # Small tensors are looked at together, which is faster.
    small = [tensor.detach().flatten() for _, tensor in floats if tensor.numel() <= SMALL]
    parts = [tensor.detach() for _, tensor in floats if tensor.numel() > SMALL] + ([torch.cat(small)] if small else [])
    if all(_peak(part) <= min(largest, sys.float_info.max) for part in parts):
        return
    for name, tensor in floats:
        peak = _peak(tensor.detach())
        if not math.isfinite(peak):
            raise DivergedError(f"{name} holds a value that is not finite")
        if peak > largest:
            raise DivergedError(f"{name} holds a value of {peak:.2g}, and {largest:.0g} is the most")


def _peak(tensor: Tensor) -> float:
    """Return the largest magnitude; NaN if the tensor holds a NaN."""
    low, high = torch.stack(tensor.aminmax()).tolist()
    return max(-low, high) if not math.isnan(low) else math.nan
