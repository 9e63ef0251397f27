"""Losses in float32, whatever their inputs: exponentials and sums of squares overflow in float16 and blur in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, cast

import torch
from torch import Tensor

P = ParamSpec("P")


def in_full_precision(loss: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Return the same loss with float16 and bfloat16 inputs raised to float32, and untouched by autocast; float64 stays."""

    @wraps(loss)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        raised = [_raise(value) for value in args]
        named = {name: _raise(value) for name, value in kwargs.items()}
        device = next(value.device for value in (*raised, *named.values()) if isinstance(value, Tensor))
        with torch.autocast(device.type, enabled=False):
            return cast(Callable[..., Tensor], loss)(*raised, **named)

    return wrapped


def _raise(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value
