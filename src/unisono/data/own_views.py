"""Views by a function of the user's own: ``views.preset = "file.py:function"``."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from unisono.core.errors import UserError
from unisono.core.registry import import_named

ROUNDING = 1e-4
"""Images may leave [0, 1] by this much, as interpolation does; they are clamped."""


@dataclass(frozen=True)
class OwnAugmentation:
    """Samples to views by a function of a batch and a generator, which is called once for first and once for second views.

    It travels between processes by its name, and each process imports the file itself.

    Args:
        name: ``file.py:function`` or ``package.module:function``.
    """

    name: str

    @torch.no_grad()
    def __call__(self, x: Tensor, num_first: int, generator: torch.Generator) -> Tensor:
        """Return views, shape of x; images are clamped to [0, 1].

        Args:
            x: images in [0, 1], shape (batch, channels, height, width), or series, shape (batch, channels, length).
            num_first: this many samples become first views, the rest second views.
            generator: on the device of x.
        """
        return torch.cat([self._views(part, generator) for part in (x[:num_first], x[num_first:]) if len(part)])

    def check(self, input_shape: tuple[int, ...]) -> None:
        """Try the function on two random samples; raise a UserError if it cannot be used.

        Args:
            input_shape: of one sample.
        """
        x = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(0))
        first, again = (self._views(x, torch.Generator().manual_seed(1)) for _ in range(2))
        if not torch.equal(first, again):
            raise UserError(
                f"views.preset {self.name!r} returned two different batches for one state of the generator: "
                "it must draw from the generator it is given, and from nothing else."
            )

    def _views(self, x: Tensor, generator: torch.Generator) -> Tensor:
        function = _load(self.name)
        try:
            views = function(x.clone(), generator)
        except UserError:
            raise
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1].lineno
            raise UserError(f"views.preset {self.name!r} failed: line {line}: {type(error).__name__}: {error}.") from error
        problem = _problem(views, x)
        if problem:
            raise UserError(f"views.preset {self.name!r} {problem}.")
        return views.clamp(0, 1) if x.dim() == 4 else views  # type: ignore[no-any-return]


@lru_cache(maxsize=32)
def _load(name: str) -> Callable[[Tensor, torch.Generator], Any]:
    function = import_named("views.preset", name)
    if not callable(function):
        raise UserError(f"views.preset {name!r} must be a function of a batch and a generator, got {type(function).__name__}.")
    return function  # type: ignore[no-any-return]


def _problem(views: Any, x: Tensor) -> str | None:
    """Return what is wrong with the views of x that a function returned, None if nothing is."""
    if not isinstance(views, Tensor):
        return f"must return a tensor, got {type(views).__name__}"
    if views.shape != x.shape:
        return f"must return the shape of its batch, {tuple(x.shape)}, got {tuple(views.shape)}"
    if views.dtype != x.dtype or views.device != x.device:
        return f"must return {x.dtype} on {x.device} as its batch is, got {views.dtype} on {views.device}"
    if not bool(torch.isfinite(views).all()):
        return "returned NaN or infinite values"
    low, high = float(views.min()), float(views.max())
    if x.dim() == 4 and not (low >= -ROUNDING and high <= 1 + ROUNDING):
        return f"returned values from {low:.3g} to {high:.3g}; images stay in [0, 1], so end it with .clamp(0, 1)"
    return None
