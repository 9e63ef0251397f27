"""Negatives of a triplet: which points a client with received points may draw, and a record of what it drew.

Wagle et al. (CF-CL) draw anchor and negative from all points that a client holds, (3) and (4). Their importance (10) scores
a point "when it is used as a negative" of another client's anchors, and their objective (2) draws negatives from the data of
all clients. ``received`` and ``global`` follow these two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from unisono.data.received import DataWithReceived
from unisono.methods.training_loop import Batch

Negatives = Literal["union", "received", "global"]
"""Source of negatives: all points that a client holds, received ones, or own ones as often as they are in all data."""


@dataclass(frozen=True, kw_only=True)
class ExchangeBatch(Batch):
    """A batch of a client that holds points of others.

    Args:
        data: its own points and those it received.
        negatives: the loss appends the positions of the negatives that it drew, shape (batch,).
    """

    data: DataWithReceived
    negatives: list[Tensor]


@dataclass(frozen=True)
class Draws:
    """Record of the points that the steps of a round drew.

    Args:
        data: the client's own points and those it received.
        anchors: positions, a tensor per step.
        negatives: positions, as many; none for a loss without them.
    """

    data: DataWithReceived
    anchors: list[Tensor] = field(default_factory=list)
    negatives: list[Tensor] = field(default_factory=list)

    def kept(self, batch: Batch) -> ExchangeBatch:
        """Return a batch whose anchors are recorded, and whose negatives the loss can record."""
        self.anchors.append(batch.positions)
        return ExchangeBatch(**vars(batch), data=self.data, negatives=self.negatives)

    def rows(self, of_positions: Tensor) -> dict[str, Tensor]:
        """Return the rows of anchors and negatives, one entry per triplet.

        Args:
            of_positions: the row of every position, shape (len(data),).
        """
        found = {"anchors": self.anchors, "negatives": self.negatives}
        return {name: of_positions[torch.cat([of_positions.new_empty(0), *drawn])] for name, drawn in found.items()}


def draw_negatives(
    kind: Negatives, anchors: Tensor, num_own: int, num_received: int, own_share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor] | None:
    """Return positions of negatives, shape (batch,), and which of them had to come from the union; None where all have to.

    A negative is never its anchor. Where the points asked for have no other than the anchor, the union has.

    Args:
        kind: where negatives come from.
        anchors: positions of the anchors; the client's own points come first, shape (batch,).
        num_own: points of the client itself.
        num_received: points of others.
        own_share: chance of an own point, for ``global``.
        generator: draws them.
    """
    if kind == "union" or num_received == 0:
        return None
    received, has_received = _draw_others(anchors, num_own, num_received, generator)
    held, _ = _draw_others(anchors, 0, num_own + num_received, generator)
    drawn, has_drawn = received, has_received
    if kind == "global":
        own, has_own = _draw_others(anchors, 0, num_own, generator)
        takes_own = _uniform(len(anchors), generator) < own_share
        drawn, has_drawn = torch.where(takes_own, own, received), torch.where(takes_own, has_own, has_received)
    return torch.where(has_drawn, drawn, held), ~has_drawn


def _draw_others(anchors: Tensor, first: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a uniform draw from ``first`` to ``first + size - 1`` that is not the anchor, and whether there is any."""
    inside = (anchors >= first) & (anchors < first + size)
    choices = size - inside.long()
    drawn = first + (_uniform(len(anchors), generator) * choices).long()
    return drawn + (inside & (drawn >= anchors)).long(), choices > 0


def _uniform(number: int, generator: torch.Generator) -> Tensor:
    """Return draws from [0, 1), float64, on the CPU."""
    return torch.rand(number, generator=generator, device=generator.device, dtype=torch.float64).cpu()
