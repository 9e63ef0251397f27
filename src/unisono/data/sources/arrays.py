"""Foreign arrays to the project's: channels first, labels as positions in a list of names."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unisono.core.errors import UserError

MOST_CHANNELS = 64
"""An axis up to this long may be that of the channels."""


def channels_first(images: NDArray[Any], what: str) -> NDArray[Any]:
    """Return a view of shape (num, channels, height, width); the axis of channels is 1 or 3 long, else the shorter.

    Args:
        images: shape (num, height, width), (num, height, width, channels) or (num, channels, height, width).
        what: names the array in messages.
    """
    if images.ndim == 3:
        return images[:, None]
    first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
    if first and last:
        raise UserError(f"{what} of shape {images.shape} may have its channels on axis 1 or 3; reshape it so that one is left.")
    if not first and not last:
        if min(images.shape[1], images.shape[3]) > MOST_CHANNELS or images.shape[1] == images.shape[3]:
            raise UserError(f"{what} of shape {images.shape} has no axis of channels, which is 1, 3 or shorter than the sides.")
        first = images.shape[1] < images.shape[3]
    return images if first else np.moveaxis(images, 3, 1)


def number(values: Sequence[Any], names: Sequence[str] | None, what: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return positions in a list of names, int64 of shape (num,), and that list.

    Args:
        values: integers or words; integers are positions in ``names`` where it is given. None and negative numbers are
            unknown: -1.
        names: the names; without them, the distinct values in order.
        what: names the values in messages.
    """
    if any(isinstance(value, str) for value in values):
        known = sorted({value for value in values if isinstance(value, str)}) if names is None else list(names)
        place: dict[str | None, int] = {None: -1, **{word: position for position, word in enumerate(known)}}
        stranger = next((value for value in values if not isinstance(value, str | None) or value not in place), None)
        if stranger is not None:
            raise UserError(f"{what} must all be words from {', '.join(known[:10])}, got {stranger!r}.")
        return torch.tensor([place[value] for value in values]), tuple(known)
    try:
        numbers = np.asarray([-1 if value is None else max(operator.index(value), -1) for value in values], dtype=np.int64)
    except TypeError as error:
        raise UserError(f"{what} must be integers or words: {error}.") from error
    if names is not None:
        return torch.from_numpy(numbers), tuple(names)
    distinct = np.unique(numbers[numbers >= 0])
    return torch.from_numpy(np.where(numbers < 0, -1, np.searchsorted(distinct, numbers))), tuple(map(str, distinct.tolist()))


def number_both(
    train: Sequence[Any], test: Sequence[Any], names: Sequence[str] | None, what: str
) -> tuple[Tensor | None, Tensor | None, tuple[str, ...]]:
    """Return labels of both parts with one list of names; a part whose labels are all unknown has none.

    Args:
        train: values of the training samples, as ``number`` takes them.
        test: values of the test samples.
        names: the names, where they are known.
        what: names the values in messages.
    """
    positions, known = number([*train, *test], names, what)
    return some_known(positions[: len(train)]), some_known(positions[len(train) :]), known


def some_known(labels: Tensor) -> Tensor | None:
    """Return the labels, or None where all are unknown."""
    return labels.clone() if bool((labels >= 0).any()) else None
