"""Payload, Update, Aggregate: everything that is sent or saved."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
Scalar = int | float | str | bool


class Reduce(Enum):
    """Rule by which the updates of many clients become one.

    MEAN is the weighted mean over clients. STACK keeps the clients apart, keyed by client id. ROWS is the mean of tensors of
    which every client sends its own row only (row ``client_id``), as if it had sent all other rows as the server holds them.
    """

    MEAN = "mean"
    STACK = "stack"
    ROWS = "rows"


class Reveals(Enum):
    """Kind of information that a tensor group reveals about a client's data; the last two need consent in the config."""

    PARAMETERS = "parameters"
    STATISTICS = "statistics"
    REPRESENTATIONS = "representations"
    DATA = "data"


@dataclass(frozen=True)
class Form:
    """Form of a tensor that the server has none like of, so that what clients send can be checked.

    Args:
        shape: length of each axis; ``group/name`` is the length of that tensor among those that the client received, and any
            other word a length up to ``most``, the same wherever the group has this word.
        most: the largest length that a word may stand for.
        low: the smallest value.
        high: the largest value.
        dtype: the type; None: any.
    """

    shape: tuple[int | str, ...]
    most: int = 0
    low: float = -math.inf
    high: float = math.inf
    dtype: torch.dtype | None = torch.float32


UNIT = 1.01
"""Largest number of a vector of unit length, with some room for rounding."""


@dataclass(frozen=True)
class Share:
    """Declaration of one shared group: how it is reduced, what it reveals, and what it holds.

    Args:
        reduce: the rule.
        reveals: the kind of information.
        form: of each tensor by name, where clients receive no such group to compare with; else ``server_step`` has to bear
            whatever a client sends. What clients send each other goes by its name without the address.
    """

    reduce: Reduce
    reveals: Reveals = Reveals.PARAMETERS
    form: Mapping[str, Form] | None = None


@dataclass(frozen=True)
class Payload:
    """Named groups of named tensors, and scalars.

    Group names hold no ``/``; ``flatten`` joins group and tensor name with one.
    """

    groups: Mapping[str, Tensors] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.groups:
            if "/" in name or not name:
                raise ValueError(f"a group name is a word without '/', got {name!r}")
        for name, value in self.scalars.items():
            if not isinstance(value, Scalar):
                raise ValueError(f"scalar {name} must be a number, a string or a boolean, got {type(value).__name__}")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"scalar {name} must be finite, got {value}")

    @property
    def num_bytes(self) -> int:
        """Size of all tensors, plus the scalars as JSON."""
        tensors = sum(tensor.numel() * tensor.element_size() for _, tensor in self.tensors())
        return tensors + (len(json.dumps(dict(self.scalars))) if self.scalars else 0)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor with its full name ``group/name``, in order."""
        for group, members in self.groups.items():
            for name, tensor in members.items():
                yield f"{group}/{name}", tensor

    def flatten(self) -> dict[str, Tensor]:
        """Return all tensors under their full names; ``unflatten`` undoes it."""
        return dict(self.tensors())

    @staticmethod
    def unflatten(tensors: Tensors, scalars: Mapping[str, Scalar] | None = None, group_names: Iterable[str] = ()) -> Payload:
        """Return the payload whose ``flatten()`` gave ``tensors``.

        Args:
            tensors: by full name.
            scalars: the payload's scalars.
            group_names: groups to make even if they hold no tensor, in this order and before all others.
        """
        groups: dict[str, dict[str, Tensor]] = {name: {} for name in group_names}
        for full_name, tensor in tensors.items():
            group, slash, name = full_name.partition("/")
            if not slash:
                raise ValueError(f"a tensor's full name is group/name, got {full_name!r}")
            groups.setdefault(group, {})[name] = tensor
        return Payload(groups, dict(scalars or {}))

    def with_groups(self, **groups: Tensors) -> Payload:
        """Return a copy with these groups replaced or added."""
        return Payload({**self.groups, **groups}, self.scalars)

    def with_scalars(self, **scalars: Scalar) -> Payload:
        """Return a copy with these scalars replaced or added."""
        return Payload(self.groups, {**self.scalars, **scalars})

    def merge(self, other: Payload) -> Payload:
        """Return both payloads in one; ``other`` wins where both have a name."""
        return Payload({**self.groups, **other.groups}, {**self.scalars, **other.scalars})


@dataclass(frozen=True)
class Update:
    """One client's update.

    Args:
        client_id: who answers.
        weight: its weight in means, usually its number of samples.
        payload: the groups it shares; its scalars stay empty.
        metrics: numbers for the log, averaged with the same weights.
    """

    client_id: int
    weight: float
    payload: Payload
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Aggregate:
    """The reduced updates of all clients of a phase.

    ``means`` and ``stacks`` hold only groups that at least one client sent; a mean covers the clients that sent the group.

    Args:
        means: the reduced MEAN and ROWS groups, after the server optimiser.
        stacks: the STACK groups, in order of client id.
        weight: total weight of the clients that answered.
        num_clients: how many answered.
        metrics: weighted means of the clients' metrics.
    """

    means: Mapping[str, Tensors] = field(default_factory=dict)
    stacks: Mapping[str, Sequence[tuple[int, Tensors]]] = field(default_factory=dict)
    weight: float = 0.0
    num_clients: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
