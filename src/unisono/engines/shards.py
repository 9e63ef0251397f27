"""Shards of clients, run one client after the other: in a worker process, or in the caller without workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unisono.core.context import Context
from unisono.core.errors import ClientError
from unisono.core.method import Method
from unisono.core.payload import Payload, Reduce
from unisono.federation.aggregate import Accumulator, AggregationConfig
from unisono.federation.client_turn import ClientStats, FederatedDataset, accept_update, prepare_nets, run_client
from unisono.federation.loop import PhaseResult
from unisono.federation.postprocess import Postprocessor


@dataclass(frozen=True)
class WorkerSetup:
    """Everything a worker needs besides its tasks: the same for every round."""

    method: Method
    clients: FederatedDataset
    postprocessor: Postprocessor
    aggregation: AggregationConfig


@dataclass(frozen=True)
class ShardTask:
    """The clients of one shard, with what only they are sent."""

    shard: int
    ctx: Context
    clients: Sequence[int]
    routed: Mapping[int, Payload]
    locals: Mapping[int, Payload]


class ShardMerger:
    """Merges the outcomes of shards in the order of shards, whatever the order in which they come.

    Args:
        phase_result: an empty one, to merge into.
    """

    def __init__(self, phase_result: PhaseResult) -> None:
        self.phase_result = phase_result
        self._next = 0
        self._waiting: dict[int, PhaseResult] = {}

    def take(self, shard: int, part: PhaseResult) -> None:
        """Merge the outcome of a shard now, or keep it until the shards before it have come."""
        if shard != self._next:
            self._waiting[shard] = part
            return
        while True:
            self._merge(part)
            self._next += 1
            if self._next not in self._waiting:
                return
            part = self._waiting.pop(self._next)

    def _merge(self, part: PhaseResult) -> None:
        self.phase_result.accumulator.merge(part.accumulator)
        part.accumulator.sums = {}  # their memory may be used again
        self.phase_result.locals.update(part.locals)
        self.phase_result.stats += part.stats
        self.phase_result.failures += part.failures


class ShardRunner:
    """Runner of shards in this process with one scratch set of networks."""

    def __init__(self, setup: WorkerSetup, device: torch.device) -> None:
        self.setup = setup
        self.device = device
        self.nets: nn.ModuleDict = prepare_nets(setup.method, device)

    def run(
        self,
        task: ShardTask,
        broadcast: Payload,
        on_client_start: Callable[[int], object] = lambda client_id: None,
        on_client_end: Callable[[ClientStats], None] = lambda stats: None,
        room: Callable[[Tensor], Tensor] = torch.empty_like,
    ) -> PhaseResult:
        """Run the shard's clients in order.

        Args:
            task: the shard.
            broadcast: what all clients receive.
            on_client_start: told before each client.
            on_client_end: told after each client that answered.
            room: as for ``Accumulator``.
        """
        setup = self.setup
        result = PhaseResult(Accumulator(setup.method.shares, setup.aggregation, room))
        # Updates that are summed are read at once; others are kept as they are.
        shares = setup.method.shares.values()
        summed = setup.aggregation.rule == "mean" and all(share.reduce is Reduce.MEAN for share in shares)
        for client_id in task.clients:
            on_client_start(client_id)
            received = broadcast.merge(task.routed[client_id]) if client_id in task.routed else broadcast
            ctx = Context(task.ctx.seed, task.ctx.round, task.ctx.phase, client_id, self.device)
            try:
                answered = run_client(
                    setup.method,
                    self.nets,
                    received,
                    task.locals.get(client_id, Payload()),
                    setup.clients.client_data(client_id, self.device),
                    ctx,
                    setup.postprocessor,
                    lent=summed,
                )
                accept_update(answered.update, received, setup.method.shares, setup.postprocessor, result.accumulator, ctx)
            except ClientError as failure:
                result.failures.append(failure)
                continue
            result.locals[client_id] = answered.local
            result.stats.append(answered.stats)
            on_client_end(answered.stats)
        return result
