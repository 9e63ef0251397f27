"""The vector that a client masks: all averaged groups of a phase, then the weights and metrics.

Large tensors (two or more dimensions, and the server sent their present values) are differences in words of 16 or 32 bits. All
others, such as statistics of BatchNorm and totals of k-means, and the weights and metrics, are words of 64 bits, which hold
magnitudes up to 2^22 in steps below 2^-30.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unisono.core.payload import Payload, Tensors
from unisono.privacy.ring import Ring, Words

WIDE_LIMIT = 2.0**22
HEADROOM = 16.0
"""Largest update of a tensor with words of 32 bits, as a multiple of its largest weight."""
NARROW_HEADROOM = 2.0
"""The same for words of 16 bits, which have few levels: what is beyond is cut."""


@dataclass(frozen=True)
class Template:
    """Names and shapes of the tensors of a sum, the same for all of its clients.

    Args:
        groups: that are summed, in order.
        tensors: full name, shape, and whether its words are short.
    """

    groups: tuple[str, ...]
    tensors: tuple[tuple[str, tuple[int, ...], bool], ...]

    @staticmethod
    def of(groups: Sequence[str], broadcast: Payload, own: Mapping[str, Tensors]) -> Template:
        """Return the template of a phase; raise a ValueError if a group is neither received nor sent.

        Args:
            groups: all that are averaged in the phase.
            broadcast: what all clients received, whose shapes count.
            own: what this client sends, for groups that nobody received.
        """
        entries: list[tuple[str, tuple[int, ...], bool]] = []
        for group in groups:
            known = group in broadcast.groups
            if not known and group not in own:
                raise ValueError(f"this client has no {group!r} to send, and does not know its shape")
            for name, tensor in sorted((broadcast.groups if known else own)[group].items()):
                entries.append((f"{group}/{name}", tuple(tensor.shape), known and _is_large(tensor)))
        return Template(tuple(groups), tuple(entries))

    @staticmethod
    def read(values: Any) -> Template:
        """Return what ``as_json`` wrote; raise a ValueError if it is damaged."""
        try:
            entries = [(str(name), tuple(int(n) for n in shape), bool(short)) for name, shape, short in values["tensors"]]
            if any(n < 0 for _, shape, _ in entries for n in shape):
                raise ValueError("a negative size")
            return Template(tuple(str(group) for group in values["groups"]), tuple(entries))
        except (TypeError, LookupError, ValueError) as error:
            raise ValueError(f"the template of a masked sum is damaged: {error}") from error

    def as_json(self) -> dict[str, Any]:
        """Return the template as plain values."""
        return {"groups": list(self.groups), "tensors": [[name, list(shape), short] for name, shape, short in self.tensors]}

    @cached_property
    def digest(self) -> str:
        """Hash of the template."""
        return hashlib.sha256(json.dumps(self.as_json(), separators=(",", ":")).encode()).hexdigest()

    def check(self, groups: Sequence[str], broadcast: Payload, most: int) -> None:
        """Raise a ValueError unless this is the template of a phase, and has at most so many words."""
        known = [group for group in groups if group in broadcast.groups]
        expected = Template.of(known, broadcast, {})
        own = tuple(entry for entry in self.tensors if entry[0].split("/", 1)[0] in known)
        if self.groups != tuple(groups) or own != expected.tensors:
            raise ValueError("the update has other groups, names or shapes than what was sent")
        others = [name for name, _, short in self.tensors if short and name.split("/", 1)[0] not in known]
        if others or sum(math.prod(shape) for _, shape, _ in self.tensors) > most:
            raise ValueError("the update is larger than the server reads, or its words are too short")


@dataclass(frozen=True)
class Layout:
    """Places of all numbers of a masked vector.

    Args:
        template: its tensors.
        metrics: names of the metrics, sorted.
        limits: largest magnitude of each tensor with short words.
        short: ring of the short words.
        wide: ring of the others.
    """

    template: Template
    metrics: tuple[str, ...]
    limits: Mapping[str, float]
    short: Ring
    wide: Ring

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Numbers of short and of wide words."""
        count = {True: 0, False: 0}
        for _, shape, short in self.template.tensors:
            count[short] += math.prod(shape)
        return count[True], count[False] + 1 + 2 * len(self.template.groups) + 2 * len(self.metrics)

    def empty(self) -> list[Words]:
        """Return a vector of zeros."""
        return [np.zeros(size, ring.dtype) for size, ring in zip(self.sizes, (self.short, self.wide), strict=True)]

    def pack(
        self, deltas: Tensors, weight: float, metrics: Mapping[str, float], rng: np.random.Generator
    ) -> tuple[list[Words], int]:
        """Return a client's vector, and how many of its values were cut.

        Args:
            deltas: by full name, what the client adds; groups that it does not send are missing.
            weight: between 0 and 1.
            metrics: of the client; those that others do not have are missing there.
            rng: draws the rounding.
        """
        short, wide = self.empty()
        places, cut = [0, 0], 0
        sent = {name.split("/", 1)[0] for name in deltas}
        for name, shape, is_short in self.template.tensors:
            size, place = math.prod(shape), places[0 if is_short else 1]
            places[0 if is_short else 1] += size
            if name in deltas:
                ring, words = (self.short, short) if is_short else (self.wide, wide)
                limit = self.limits[name] if is_short else WIDE_LIMIT
                values = deltas[name].detach().reshape(-1).numpy()
                cut += ring.encode(values, weight, limit, rng, words[place : place + size])
        groups = [x for group in self.template.groups for x in ((weight, 1.0) if group in sent else (0.0, 0.0))]
        tail = np.array([weight, *groups])
        end = places[1] + len(tail)
        cut += self.wide.encode(tail, 1.0, WIDE_LIMIT, rng, wide[places[1] : end])
        return self.with_metrics([short, wide[:end]], weight, metrics, rng), cut

    def with_metrics(
        self, vector: Sequence[Words], weight: float, metrics: Mapping[str, float], rng: np.random.Generator
    ) -> list[Words]:
        """Return a vector that holds no metrics yet, with a client's; values beyond the limit are cut."""
        told = [x for name in self.metrics for x in ((weight, weight * metrics[name]) if name in metrics else (0.0, 0.0))]
        words = np.zeros(len(told), self.wide.dtype)
        self.wide.encode(np.array(told, dtype=np.float64), 1.0, WIDE_LIMIT, rng, words)
        return [vector[0], np.concatenate([vector[1], words])]

    def unpack(self, vector: Sequence[Words]) -> WeightedSums:
        """Return what a sum of vectors says."""
        short, wide = vector
        places, tensors = [0, 0], {}
        for name, shape, is_short in self.template.tensors:
            size, place = math.prod(shape), places[0 if is_short else 1]
            places[0 if is_short else 1] += size
            ring, words, limit = (self.short, short, self.limits[name]) if is_short else (self.wide, wide, WIDE_LIMIT)
            tensors[name] = torch.from_numpy(ring.decode(words[place : place + size], limit)).reshape(shape)
        tail: NDArray[np.float64] = self.wide.decode(wide[places[1] :], WIDE_LIMIT)
        pairs = tail[1:].reshape(-1, 2).tolist()
        groups = dict(zip(self.template.groups, pairs, strict=False))
        told = dict(zip(self.metrics, pairs[len(self.template.groups) :], strict=True))
        return WeightedSums(
            tensors,
            float(tail[0]),
            {group: weight for group, (weight, _) in groups.items()},
            {group: round(number) for group, (_, number) in groups.items()},
            {name: (value, weight) for name, (weight, value) in told.items()},
        )

    def check(self, sums: WeightedSums, senders: Mapping[str, int], num_clients: int) -> None:
        """Raise a ValueError if no honest clients can have this sum: one of them has sent words that no update gives.

        Args:
            sums: what ``unpack`` returned.
            senders: by group, how many of the clients said that they send it.
            num_clients: whose vectors were added up.
        """
        slack = 1e-6 * num_clients
        weights = {**{f"group {group}": weight for group, weight in sums.weights.items()}, "the clients": sums.weight}
        weights |= {f"metric {name}": weight for name, (_, weight) in sums.metrics.items()}
        for what, weight in weights.items():
            most = senders.get(what.removeprefix("group "), num_clients)
            if not -slack <= weight <= most + slack:
                raise ValueError(f"the weight of {what} is {weight:.3g}, and {most} clients have at most {most}")
        for group, number in sums.counts.items():
            if number != senders.get(group, 0):
                raise ValueError(f"{number} clients count as senders of group {group!r}, and {senders.get(group, 0)} said so")
        for name, shape, is_short in self.template.tensors:
            if not math.prod(shape):
                continue
            ring, limit = (self.short, self.limits[name]) if is_short else (self.wide, WIDE_LIMIT)
            most = (sums.weights[name.split("/", 1)[0]] + num_clients / ring.top + slack) * limit
            largest = float(sums.tensors[name].abs().max())
            if largest > most:
                raise ValueError(f"{name} holds a sum of {largest:.3g}, and at most {most:.3g} can be")


@dataclass(frozen=True)
class WeightedSums:
    """Sums over all clients of a masked sum.

    Args:
        tensors: by full name, weight times value.
        weight: of all clients.
        weights: by group, of the clients that sent it.
        counts: by group, how many sent it.
        metrics: weight times value, and weight.
    """

    tensors: Mapping[str, Tensor]
    weight: float
    weights: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def default_limits(broadcast: Payload) -> dict[str, float]:
    """Return the largest update of each large tensor: 16 times its largest weight, at least 16, a power of two."""
    return {name: HEADROOM * 2.0 ** math.ceil(math.log2(max(1.0, largest))) for name, largest in _largest(broadcast)}


def narrow_limits(broadcast: Payload) -> dict[str, float]:
    """Return the largest update of each large tensor where words are few: twice its largest weight."""
    return {name: NARROW_HEADROOM * max(1e-3, largest) for name, largest in _largest(broadcast)}


def _largest(broadcast: Payload) -> Iterator[tuple[str, float]]:
    """Yield the largest magnitude in each large tensor."""
    for name, tensor in broadcast.tensors():
        if _is_large(tensor):
            largest = float(torch.stack(tensor.aminmax()).abs().amax()) if tensor.numel() else 0.0
            if not math.isfinite(largest):
                raise ValueError(f"{name} of the model holds a value that is not finite")
            yield name, largest


def _is_large(tensor: Tensor) -> bool:
    return tensor.dim() >= 2 and tensor.is_floating_point()
