"""A lane of clients, one after the other: what a worker process does, and what the caller does without workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from unisono.core.context import Context
from unisono.core.errors import ClientError
from unisono.core.method import Method
from unisono.core.payload import Payload
from unisono.federation.aggregate import AggregationConfig, Fold
from unisono.federation.postprocess import Postprocessor
from unisono.federation.rounds import Outcome
from unisono.federation.worker import Clients, Report, accept, answer, prepare_nets


@dataclass(frozen=True)
class Workshop:
    """Everything a worker needs besides its tasks: the same for every round."""

    method: Method
    clients: Clients
    postprocessor: Postprocessor
    aggregation: AggregationConfig


@dataclass(frozen=True)
class LaneTask:
    """The clients of one lane, with what only they are sent."""

    lane: int
    ctx: Context
    clients: Sequence[int]
    routed: Mapping[int, Payload]
    locals: Mapping[int, Payload]


class LaneMerger:
    """Merges the outcomes of lanes in the order of lanes, whatever the order in which they come.

    Args:
        outcome: an empty one, to merge into.
    """

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._next = 0
        self._waiting: dict[int, Outcome] = {}

    def take(self, lane: int, part: Outcome) -> None:
        """Merges the outcome of a lane now, or keeps a copy until the lanes before it have come."""
        if lane != self._next:
            part.fold.detach()
            self._waiting[lane] = part
            return
        while True:
            self._merge(part)
            self._next += 1
            if self._next not in self._waiting:
                return
            part = self._waiting.pop(self._next)

    def _merge(self, part: Outcome) -> None:
        self.outcome.fold.merge(part.fold)
        self.outcome.locals.update(part.locals)
        self.outcome.reports += part.reports
        self.outcome.failures += part.failures


class LaneRunner:
    """Runs lanes in this process with one scratch set of networks."""

    def __init__(self, workshop: Workshop, device: torch.device) -> None:
        self.workshop = workshop
        self.device = device
        self.nets: nn.ModuleDict = prepare_nets(workshop.method, device)

    def run(
        self,
        task: LaneTask,
        broadcast: Payload,
        on_start: Callable[[int], None] = lambda client_id: None,
        on_report: Callable[[Report], None] = lambda report: None,
    ) -> Outcome:
        """Asks the lane's clients in order.

        Args:
            task: the lane.
            broadcast: what all clients receive.
            on_start: told before each client.
            on_report: told after each client that answered.
        """
        workshop = self.workshop
        result = Outcome(Fold(workshop.method.shares, workshop.aggregation))
        for client_id in task.clients:
            on_start(client_id)
            received = broadcast.merge(task.routed[client_id]) if client_id in task.routed else broadcast
            ctx = Context(task.ctx.seed, task.ctx.round, task.ctx.phase, client_id, self.device)
            try:
                answered = answer(
                    workshop.method,
                    self.nets,
                    received,
                    task.locals.get(client_id, Payload()),
                    workshop.clients.data_of(client_id, self.device),
                    ctx,
                    workshop.postprocessor,
                )
                accept(answered.update, received, workshop.method.shares, workshop.postprocessor, result.fold, ctx)
            except ClientError as failure:
                result.failures.append(failure)
                continue
            result.locals[client_id] = answered.local
            result.reports.append(answered.report)
            on_report(answered.report)
        return result
