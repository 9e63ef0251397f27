"""Aggregation of the updates of many clients.

Clients are assigned to a fixed number of shards; each shard is summed in order of client id, and the shards are
summed in order, so the result is bit-identical for any number of workers, and memory does not grow with the number of clients.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from unisono.core.config import Section
from unisono.core.errors import MethodError, UserError
from unisono.core.payload import Aggregate, Payload, Reduce, Share, Tensors, Update
from unisono.federation.robust import coordinate_median, krum_selection, num_cut, trimmed_mean, weighted_mean

NUM_SHARDS = 8
Shapes = Mapping[str, tuple[int, ...]]


class AggregationConfig(Section):
    """Reduction of MEAN groups: the table ``[aggregation]``; ROWS are always means, as no two clients send the same row."""

    rule: Literal["mean", "trimmed-mean", "median", "multi-krum"] = Field("mean", description="how updates are combined")
    weighting: Literal["samples", "uniform"] = Field("samples", description="weights of the mean")
    trim: float = Field(0.1, ge=0, lt=0.5, description="share of values cut from each end (trimmed-mean)")
    byzantine: int = Field(1, ge=0, description="number of hostile clients that is tolerated (multi-krum)")
    screen: float = Field(
        0.0, ge=0, description="robust z-score of an update's length beyond which it is left out, on Flower's engines; 0: none"
    )

    max_weight_share: float | None = Field(
        None, gt=0, lt=1, description="largest share of a mean that one client may have, on a real federation; unset: any"
    )

    def capped(self, weight: float, others: float) -> float:
        """Return a client's weight, lowered to its largest share.

        Args:
            weight: what the client says.
            others: the largest weight that all others may have together; 0 where there are none.
        """
        if self.max_weight_share is None or others <= 0:
            return weight
        return min(weight, self.max_weight_share / (1 - self.max_weight_share) * others)

    def check(self, cohort_size: int) -> None:
        """Refuse a rule that cannot do what it promises with so few clients."""
        if self.rule == "multi-krum" and cohort_size <= 2 * self.byzantine + 2:
            raise UserError(
                f"aggregation.byzantine must be less than (clients per round - 2) / 2 for multi-krum, got {self.byzantine} "
                f"with {cohort_size} clients per round: ask more clients or tolerate fewer hostile ones."
            )
        if self.rule == "trimmed-mean" and num_cut(self.trim, cohort_size) == 0:
            raise UserError(
                f"aggregation.trim must be at least {1 / cohort_size:.2g} to cut anything from {cohort_size} clients, "
                f"got {self.trim}."
            )


def mean_shapes(payload: Payload, shares: Mapping[str, Share]) -> dict[str, Shapes]:
    """Return the shapes of all tensors that are averaged, by group and name."""
    return {
        group: {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for group, tensors in payload.groups.items()
        if group in shares and shares[group].reduce is Reduce.MEAN
    }


def assign_shards(clients: Mapping[int, int], num_shards: int = NUM_SHARDS) -> list[list[int]]:
    """Assign clients to shards of about equally many samples, each shard in order of client id.

    Args:
        clients: client id to number of samples.
        num_shards: at most this many shards.
    """
    shards: list[list[int]] = [[] for _ in range(min(num_shards, len(clients)))]
    loads = [(0, shard) for shard in range(len(shards))]
    for client_id in sorted(clients, key=lambda client: (-clients[client], client)):
        load, shard = heapq.heappop(loads)
        shards[shard].append(client_id)
        heapq.heappush(loads, (load + clients[client_id], shard))
    return [sorted(shard) for shard in shards]


class Accumulator:
    """Partial sums over clients; ``add`` takes an update, ``merge`` the next shard, ``finish`` gives the Aggregate.

    Robust rules need every update, so for them the accumulator keeps the updates apart instead of summing.

    Args:
        shares: the method's declared shares.
        config: rule and weighting.
        room: gives memory like a tensor for its sum, such as shared memory.
        shapes: those that the first client of a phase sent, by group; shards in one process share them.
    """

    def __init__(
        self,
        shares: Mapping[str, Share],
        config: AggregationConfig,
        room: Callable[[Tensor], Tensor] = torch.empty_like,
        shapes: dict[str, Shapes] | None = None,
    ) -> None:
        self._shares = shares
        self._config = config
        self._room = room
        self._shapes = {} if shapes is None else shapes
        self.sums: dict[str, dict[str, Tensor]] = {}
        self.weights: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self.kept: list[tuple[str, int, float, Tensors]] = []
        self.weight = 0.0
        self.num_clients = 0
        self.metrics: dict[str, tuple[float, float]] = {}

    def add(self, update: Update) -> None:
        """Add one client; raise a ValueError, and add nothing, if its tensors do not fit those of the clients before."""
        weight = 1.0 if self._config.weighting == "uniform" else update.weight
        means = mean_shapes(update.payload, self._shares)
        for group, shapes in means.items():
            _check_alike(group, self._shapes.get(group, shapes), shapes)
        self._shapes.update(means)
        for group, tensors in update.payload.groups.items():
            self.counts[group] = self.counts.get(group, 0) + 1
            if self._is_summed(group):
                self._sum(group, tensors, weight)
            else:
                self.kept.append((group, update.client_id, weight, tensors))
        self.weight += weight
        self.num_clients += 1
        for name, value in update.metrics.items():
            total, total_weight = self.metrics.get(name, (0.0, 0.0))
            self.metrics[name] = (total + weight * value, total_weight + weight)

    def merge(self, other: Accumulator) -> None:
        """Add the next shard; raise a MethodError if its clients sent other shapes."""
        for group, shapes in other._shapes.items():
            try:
                _check_alike(group, self._shapes.setdefault(group, shapes), shapes)
            except ValueError as error:
                raise MethodError(f"client_step must send tensors of the same shape from every client: {error}.") from error
        for group, tensors in other.sums.items():
            if group in self.sums:
                _add_to(self.sums[group], tensors)
                self.weights[group] += other.weights[group]
            else:
                self.sums[group] = {name: tensor.clone() for name, tensor in tensors.items()}
                self.weights[group] = other.weights[group]
        for group, count in other.counts.items():
            self.counts[group] = self.counts.get(group, 0) + count
        self.kept += other.kept
        self.weight += other.weight
        self.num_clients += other.num_clients
        for name, (value, weight) in other.metrics.items():
            total, total_weight = self.metrics.get(name, (0.0, 0.0))
            self.metrics[name] = (total + value, total_weight + weight)

    def finish(self, server: Mapping[str, Tensors] | None = None) -> Aggregate:
        """Return means, stacks and metrics of all clients added; to be called once, as the sums become the means.

        Args:
            server: the server's groups; those of ROWS are needed.
        """
        means: dict[str, Tensors] = {
            group: _divided(sums, self.weights[group]) for group, sums in self.sums.items() if self.weights[group] > 0
        }
        stacks: dict[str, list[tuple[int, Tensors]]] = {}
        apart: dict[str, list[tuple[int, float, Tensors]]] = {}
        for group, client_id, weight, tensors in sorted(self.kept, key=lambda entry: entry[:2]):
            if self._shares[group].reduce is Reduce.STACK:
                stacks.setdefault(group, []).append((client_id, tensors))
            else:
                apart.setdefault(group, []).append((client_id, weight, tensors))
        chosen = self._trusted_clients(apart) if self._config.rule == "multi-krum" else None
        for group, entries in apart.items():
            if self._shares[group].reduce is Reduce.MEAN:
                means[group] = self._robust_mean(entries, chosen)
            elif any(weight > 0 for _, weight, _ in entries):
                means[group] = _mean_of_rows((server or {})[group], entries)
        metrics = {name: total / weight for name, (total, weight) in self.metrics.items() if weight > 0}
        return Aggregate(means, stacks, self.weight, self.num_clients, metrics)

    def attach(self, sums: Payload) -> None:
        """Take sums that travelled apart, such as views of shared memory."""
        self.sums = {group: dict(tensors) for group, tensors in sums.groups.items()}

    def detach(self) -> None:
        """Copy the sums out of memory that others may overwrite."""
        self.sums = {group: {name: tensor.clone() for name, tensor in sums.items()} for group, sums in self.sums.items()}

    def __getstate__(self) -> dict[str, Any]:
        kept = [(group, client_id, weight, Payload({group: tensors})) for group, client_id, weight, tensors in self.kept]
        return {**self.__dict__, "sums": Payload(self.sums), "kept": kept, "_room": torch.empty_like}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.sums = {group: dict(tensors) for group, tensors in state["sums"].groups.items()}
        self.kept = [
            (group, client_id, weight, payload.groups.get(group, {})) for group, client_id, weight, payload in state["kept"]
        ]

    def _is_summed(self, group: str) -> bool:
        return self._shares[group].reduce is Reduce.MEAN and self._config.rule == "mean"

    def _sum(self, group: str, tensors: Tensors, weight: float) -> None:
        if group not in self.sums:
            self.sums[group] = {name: self._weighted(tensor, weight) for name, tensor in tensors.items()}
            self.weights[group] = weight
            return
        _add_to(self.sums[group], tensors, weight)
        self.weights[group] += weight

    def _weighted(self, tensor: Tensor, weight: float) -> Tensor:
        return torch.mul(tensor.detach(), weight, out=self._room(tensor)) if tensor.is_floating_point() else tensor * weight

    def _trusted_clients(self, apart: Mapping[str, Sequence[tuple[int, float, Tensors]]]) -> set[int]:
        """Return the clients that multi-Krum keeps, judged by all MEAN groups they sent together."""
        whole: dict[int, dict[str, Tensor]] = {}
        for group, entries in apart.items():
            if self._shares[group].reduce is Reduce.MEAN:
                for client_id, _, tensors in entries:
                    whole.setdefault(client_id, {}).update({f"{group}/{name}": tensor for name, tensor in tensors.items()})
        common = set.intersection(*(set(tensors) for tensors in whole.values())) if whole else set()
        clients = sorted(whole)
        if not common:
            return set(clients)
        names = sorted(common)
        updates = [{name: whole[client_id][name] for name in names} for client_id in clients]
        return {clients[index] for index in krum_selection(updates, self._config.byzantine)}

    def _robust_mean(self, entries: Sequence[tuple[int, float, Tensors]], chosen: set[int] | None) -> Tensors:
        updates = [tensors for _, _, tensors in entries]
        if not updates[0]:
            return {}
        if self._config.rule == "trimmed-mean":
            return trimmed_mean(updates, self._config.trim)
        if self._config.rule == "median":
            return coordinate_median(updates)
        kept = [entry for entry in entries if chosen is None or entry[0] in chosen] or list(entries)
        return weighted_mean([tensors for _, _, tensors in kept], [weight for _, weight, _ in kept])


def _mean_of_rows(server: Tensors, entries: Sequence[tuple[int, float, Tensors]]) -> Tensors:
    """Return the mean over clients that each changed their own row: server row + share of weight * (sent row - server row)."""
    total = sum(weight for _, weight, _ in entries)
    means = {name: tensor.clone() for name, tensor in server.items()}
    for client_id, weight, rows in entries:
        for name, row in rows.items():
            means[name][client_id].lerp_(row, weight / total)
    return means


def _check_alike(group: str, known: Shapes, shapes: Shapes) -> None:
    """Raise a ValueError unless names and shapes agree; torch would broadcast a smaller tensor in silence."""
    if known != shapes:
        name = min(name for name in known.keys() | shapes.keys() if known.get(name) != shapes.get(name))
        raise ValueError(f"{group}/{name} has shape {shapes.get(name)}, but other clients sent {known.get(name)}")


def _add_to(sums: dict[str, Tensor], tensors: Tensors, weight: float = 1.0) -> None:
    if sums:  # torch refuses empty lists, which a network without parameters gives
        torch._foreach_add_(list(sums.values()), [tensors[name] for name in sums], alpha=weight)


def _divided(sums: dict[str, Tensor], weight: float) -> Tensors:
    if sums:
        torch._foreach_div_(list(sums.values()), weight)
    return sums
