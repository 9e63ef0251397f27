"""A lane of clients, one after the other: what a worker process does, and what the caller does without workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from unisono.core.context import Context
from unisono.core.errors import ClientError
from unisono.core.method import Method
from unisono.core.payload import Payload
from unisono.federation.aggregate import AggregationConfig, Fold
from unisono.federation.postprocess import Postprocessor
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


@dataclass
class LaneResult:
    """A lane's partial sums, new local states, reports and failures."""

    fold: Fold
    locals: dict[int, Payload] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    failures: list[ClientError] = field(default_factory=list)


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
    ) -> LaneResult:
        """Asks the lane's clients in order.

        Args:
            task: the lane.
            broadcast: what all clients receive.
            on_start: told before each client.
            on_report: told after each client that answered.
        """
        workshop = self.workshop
        result = LaneResult(Fold(workshop.method.shares, workshop.aggregation))
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
