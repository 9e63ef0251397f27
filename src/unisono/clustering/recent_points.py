"""The most recent representations of a client's samples."""

from __future__ import annotations

import torch
from torch import Tensor


class RecentPoints:
    """The most recent representations of different samples of a client in this round; it never leaves the client.

    A sample that comes again in a later epoch replaces its older self, so a cluster of k points stands for k samples.

    Args:
        size: how many are kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows: dict[int, Tensor] = {}

    def add(self, positions: Tensor, z: Tensor) -> None:
        """Add the representations of a batch, shape (batch, dim), of the samples at these positions."""
        for position, row in zip(positions.tolist(), z.detach().cpu(), strict=True):
            self._rows.pop(position, None)
            self._rows[position] = row
        while len(self._rows) > self._size:
            del self._rows[next(iter(self._rows))]

    def points(self) -> Tensor:
        """Return them, the oldest first, shape (number, dim)."""
        return torch.stack(list(self._rows.values())) if self._rows else torch.empty(0, 1)
