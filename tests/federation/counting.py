"""A method whose every number can be worked out by hand, and an engine that runs it in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
from torch import nn

from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import ClientError
from unisono.core.method import Method, Phase, RunInfo
from unisono.core.payload import Aggregate, Form, Payload, Reduce, Share, Update
from unisono.federation.aggregate import Accumulator
from unisono.federation.client_store import ClientStateStore
from unisono.federation.client_turn import ClientStats, FederatedDataset, prepare_nets, run_client
from unisono.federation.loop import Callback, LoopConfig, PhaseResult, PhaseTask, RoundLoop, RoundRecord, ServerState


class Counting(Method):
    """Clients add ``client_id + 1`` to the server's number; each counts its turns in its local state."""

    _phases: Sequence[Phase] = (Phase("train"),)
    _routes = False

    @classmethod
    def make(cls, phases: Sequence[Phase] = (Phase("train"),), num_clients: int = 4, route: bool = False) -> Self:
        method = cls(Section(), RunInfo((1,), (0.0,), (1.0,), None, num_clients, 10))
        method._phases, method._routes = phases, route
        return method

    @property
    def shares(self) -> Mapping[str, Share]:
        return {"number": Share(Reduce.MEAN), "turns": Share(Reduce.STACK, form={"n": Form((1,), low=1, dtype=torch.int64)})}

    def phases(self, round: int, server: Payload) -> Sequence[Phase]:
        return self._phases

    def build_networks(self) -> nn.ModuleDict:
        return nn.ModuleDict()

    def init_server(self, ctx: Context) -> Payload:
        return Payload({"number": {"x": torch.zeros(2)}}, {"steps": 0})

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        return Payload({"number": server.groups["number"]})

    def send_to_client(self, server: Payload, ctx: Context) -> Payload:
        return Payload({"own": {"id": torch.tensor(ctx.client_id)}}) if self._routes else Payload()

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        turns = int(local.scalars.get("turns", 0)) + 1
        if self._routes:
            assert int(received.groups["own"]["id"]) == ctx.client_id
        groups = {
            "number": {"x": received.groups["number"]["x"] + ctx.client_id + 1},
            "turns": {"n": torch.tensor([turns])},
        }
        update = Update(ctx.client_id, float(len(data)), Payload(groups), {"own": float(ctx.client_id)})
        return update, Payload(scalars={"turns": turns})

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        steps = int(server.scalars["steps"]) + 1
        return server.with_groups(**aggregate.means).with_scalars(
            steps=steps, last=f"{ctx.round}/{ctx.phase}", turns=str([int(t["n"]) for _, t in aggregate.stacks["turns"]])
        )

    def encoder(self, server: Payload) -> nn.Module:
        return nn.Identity()


class InPlace:
    """Runs clients one after the other; ``fails`` picks those that raise, by (number of the exchange, client)."""

    def __init__(
        self,
        federation: RoundLoop | None,
        sizes: Sequence[int],
        fails: Callable[[int, int], bool] = lambda exchange, client: False,
    ) -> None:
        self.federation = federation
        self._clients = FederatedDataset(torch.zeros(sum(sizes), 1), torch.arange(sum(sizes)).split(list(sizes)), None)
        self._fails = fails
        self.asked: list[PhaseTask] = []

    @property
    def num_clients(self) -> int:
        return len(self._clients)

    def available(self) -> None:
        """Everyone."""

    def run_phase(self, task: PhaseTask, callbacks: Sequence[Callback]) -> PhaseResult:
        assert self.federation is not None
        method, postprocessor = self.federation.method, self.federation.postprocessor
        phase_result = PhaseResult(Accumulator(method.shares, self.federation.config.aggregation))
        nets = prepare_nets(method, torch.device("cpu"))
        number = len(self.asked)
        self.asked.append(task)
        for client in task.clients:
            ctx = task.ctx.at(client_id=client)
            if self._fails(number, client):
                phase_result.failures.append(ClientError(ctx.round, ctx.phase, client, "told to fail"))
                continue
            received = task.broadcast.merge(task.routed.get(client, Payload()))
            local = task.locals.get(client, Payload())
            done = run_client(method, nets, received, local, self._clients.client_data(client, ctx.device), ctx, postprocessor)
            phase_result.accumulator.add(postprocessor.decode(done.update, received))
            phase_result.locals[client] = done.local
            phase_result.stats.append(done.stats)
            for callback in callbacks:
                callback.on_client_end(ctx.phase, done.stats)
        return phase_result


class Diary(Callback):
    """Notes every call."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.records: list[RoundRecord] = []
        self.states: list[ServerState] = []

    def on_round_start(self, round: int, num_clients: int) -> None:
        self.lines.append(f"start {round} {num_clients}")

    def on_client_end(self, phase: str, stats: ClientStats) -> None:
        self.lines.append(f"{phase} {stats.client_id}")

    def on_client_failure(self, failure: ClientError) -> None:
        self.lines.append(f"failure {failure.client_id}")

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.lines.append(f"end {record.round}")
        self.records.append(record)
        self.states.append(state)


def make_federation(
    method: Method,
    sizes: Sequence[int],
    sections: LoopConfig,
    fails: Callable[[int, int], bool] = lambda exchange, client: False,
    seed: int = 0,
) -> tuple[RoundLoop, InPlace]:
    """A federation of this method with clients of these sizes."""
    engine = InPlace(None, sizes, fails)
    federation = RoundLoop(method, engine, ClientStateStore(), sections, seed)
    engine.federation = federation
    return federation, engine
