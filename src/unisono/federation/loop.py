"""The round loop: draw a cohort, run its clients, reduce their updates, make the server's step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pydantic import Field

from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import ClientError, MethodError, UserError
from unisono.core.method import Method, Phase
from unisono.core.noise import SeededNoise, SystemNoise
from unisono.core.payload import Aggregate, Payload
from unisono.federation.aggregate import Accumulator, AggregationConfig
from unisono.federation.client_store import ClientStateStore
from unisono.federation.client_turn import ClientStats
from unisono.federation.cohort import CohortConfig, draw_cohort, reachable_clients
from unisono.federation.declared import check_finite, check_metric_name
from unisono.federation.postprocess import CompressionConfig, Postprocessor, PrivacyConfig
from unisono.federation.server_optimizers import ServerOptimizerConfig, optimize


class FederationConfig(Section):
    """Length of the run, and what happens when clients fail: the table ``[federation]``."""

    rounds: int = Field(20, ge=1, description="number of rounds")
    quorum: float = Field(0.5, gt=0, le=1, description="share of the clients asked that must answer")
    retries: int = Field(3, ge=0, description="how often a round below quorum is retried with the next cohort")
    strict: bool = Field(True, description="stop at the first client that fails; false leaves it out and goes on")


@dataclass(frozen=True)
class LoopConfig:
    """The tables that the round loop reads."""

    federation: FederationConfig = field(default_factory=FederationConfig)
    cohort: CohortConfig = field(default_factory=CohortConfig)
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    server: ServerOptimizerConfig = field(default_factory=ServerOptimizerConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    compression: CompressionConfig = field(default_factory=CompressionConfig)


@dataclass(frozen=True)
class PhaseTask:
    """One phase for an engine to run: its clients and their inputs.

    Args:
        ctx: round and phase.
        clients: who is asked, ascending.
        broadcast: what all of them receive.
        routed: what single clients receive on top.
        locals: the local states of those that have one.
    """

    ctx: Context
    clients: Sequence[int]
    broadcast: Payload
    routed: Mapping[int, Payload]
    locals: Mapping[int, Payload]


@dataclass
class PhaseResult:
    """Results of a phase: the reduced updates, new local states, statistics and failures."""

    accumulator: Accumulator
    locals: dict[int, Payload] = field(default_factory=dict)
    stats: list[ClientStats] = field(default_factory=list)
    failures: list[ClientError] = field(default_factory=list)


class Engine(Protocol):
    """Interface of everything that runs clients."""

    @property
    def num_clients(self) -> int:
        """Size of the federation."""

    def open(self, server: Payload) -> None:
        """Start what the engine needs, with room for this server state."""

    def available(self) -> Sequence[int] | None:
        """Return the clients that can be asked now, ascending; None where all can."""

    def run_phase(self, task: PhaseTask, callbacks: Sequence[Callback]) -> PhaseResult:
        """Run every client of the task and reduce their updates."""


@dataclass(frozen=True)
class ServerState:
    """All of the server's state between two rounds.

    Args:
        round: the next round.
        server: the method's server payload.
        optimizer: the server optimiser's state.
        num_releases: how many noisy means were made so far, for the privacy accountant.
    """

    round: int
    server: Payload
    optimizer: Payload = field(default_factory=Payload)
    num_releases: int = 0


@dataclass
class RoundRecord:
    """Record of a round for logs: numbers that depend on the seed alone, and timings apart."""

    round: int
    num_asked: int = 0
    num_answered: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    clients: list[tuple[str, ClientStats]] = field(default_factory=list)
    failures: list[ClientError] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    num_releases: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the reproducible part, in the order in which it is read."""
        return {
            "round": self.round,
            "asked": self.num_asked,
            "answered": self.num_answered,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            **self.metrics,
        }


class Callback:
    """Base class for callbacks such as logging and checkpointing. Override only the hooks you need."""

    def on_run_start(self, state: ServerState) -> None:
        """Handle the start of a run, or its continuation, from this state."""

    def on_round_start(self, round: int, num_clients: int) -> None:
        """Handle the start of a round: its cohort is drawn."""

    def on_client_end(self, phase: str, stats: ClientStats) -> None:
        """Handle a client's result."""

    def on_client_failure(self, failure: ClientError) -> None:
        """Handle a client that has failed and is left out."""

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        """Handle the end of a round; metrics added to the record are logged by the callbacks that follow."""


class RoundLoop:
    """The round loop: a method, an engine and the options between them.

    Args:
        method: what is learnt.
        engine: where clients run.
        store: local states.
        config: the config.
        seed: the run's seed.
        secret_noise: draw noise for privacy from the operating system; a simulation repeats it from the seed.
    """

    def __init__(
        self,
        method: Method,
        engine: Engine,
        store: ClientStateStore,
        config: LoopConfig,
        seed: int,
        *,
        secret_noise: bool = False,
    ) -> None:
        self.method = method
        self.engine = engine
        self.store = store
        self.config = config
        self.seed = seed
        self.secret_noise = secret_noise
        self.postprocessor = Postprocessor(config.privacy, config.compression, method.shares)
        self.expected_cohort = config.cohort.expected_size(engine.num_clients)

    def initial_state(self) -> ServerState:
        """Return the state before the first round."""
        return ServerState(0, self.method.init_server(Context(self.seed)))

    def run(self, state: ServerState, callbacks: Sequence[Callback] = (), until: int | None = None) -> ServerState:
        """Run rounds up to the config's number, or up to ``until``."""
        last = self.config.federation.rounds if until is None else until
        for callback in callbacks:
            callback.on_run_start(state)
        while state.round < last:
            state = self.run_round(state, callbacks)
        return state

    def run_round(self, state: ServerState, callbacks: Sequence[Callback] = ()) -> ServerState:
        """Run one round; retry it with the next cohort while fewer than the quorum answer."""
        config = self.config.federation
        num_releases = state.num_releases
        failures: list[ClientError] = []
        for attempt in range(config.retries + 1):
            self.store.rollback()
            record = RoundRecord(state.round)
            start = time.perf_counter()
            new_state = self._try_round(state, record, attempt, callbacks)
            record.seconds["round"] = time.perf_counter() - start
            num_releases += record.num_releases
            failures += record.failures
            if new_state is not None:
                new_state = replace(new_state, num_releases=num_releases)
                self.store.commit(state.round)
                for callback in callbacks:
                    callback.on_round_end(new_state, record)
                return new_state
        self.store.rollback()
        raise UserError(
            f"Round {state.round + 1} stayed below the quorum of {config.quorum:.0%} in {config.retries + 1} attempts, the "
            f"last with {record.num_answered} of {record.num_asked} clients{_reason(failures)}: see failures.jsonl, or lower "
            "federation.quorum."
        )

    def _try_round(
        self, state: ServerState, record: RoundRecord, attempt: int, callbacks: Sequence[Callback]
    ) -> ServerState | None:
        ctx = Context(self.seed, state.round)
        present = self.engine.available()
        cohort = draw_cohort(self.config.cohort, self.engine.num_clients, ctx, attempt, present)
        server, optimizer = state.server, state.optimizer
        phases = self.method.phases(state.round, state.server)
        for callback in callbacks:
            callback.on_round_start(state.round, sum(len(self._clients_of(phase, cohort, ctx, present)) for phase in phases))
        for phase in phases:
            clients = self._clients_of(phase, cohort, ctx, present)
            if not clients:
                record.notes.append(f"nobody was asked in phase {phase.name}: no client was drawn or could be reached")
                continue
            phase_result, broadcast = self._ask(phase, clients, server, ctx, record, callbacks)
            if not phase_result.stats or len(phase_result.stats) / len(clients) < self.config.federation.quorum:
                return None
            phase_ctx = ctx.at(phase=phase.name)
            expected = len(clients) if phase.all_clients else self.expected_cohort
            aggregate = self._reduce(phase_result, server, broadcast, expected, phase_ctx, attempt)
            if self.config.privacy.noise_multiplier > 0 and aggregate.means:
                record.num_releases += 1
            means, optimizer = optimize(self.config.server, server.groups, aggregate.means, optimizer)
            optimized = Aggregate(means, aggregate.stacks, aggregate.weight, aggregate.num_clients, aggregate.metrics)
            server = self.method.server_step(server, optimized, phase_ctx)
            _add_metrics(record, phase, phases, aggregate.metrics)
        record.metrics.update(self._server_metrics(server))
        record.notes += self.method.round_notes(state.server, server)
        return ServerState(state.round + 1, server, optimizer)

    def _server_metrics(self, server: Payload) -> Mapping[str, float]:
        metrics = self.method.server_metrics(server)
        try:
            for name in metrics:
                check_metric_name(name)
        except ValueError as error:
            raise MethodError(f"{self.method.name}.server_metrics: {error}.") from error
        return metrics

    def _clients_of(self, phase: Phase, cohort: list[int], ctx: Context, present: Sequence[int] | None) -> list[int]:
        if not phase.all_clients:
            return cohort
        return [int(client) for client in reachable_clients(self.config.cohort, self.engine.num_clients, ctx, present)]

    def _ask(
        self,
        phase: Phase,
        clients: list[int],
        server: Payload,
        ctx: Context,
        record: RoundRecord,
        callbacks: Sequence[Callback],
    ) -> tuple[PhaseResult, Payload]:
        start = time.perf_counter()
        ctx = ctx.at(phase=phase.name)
        broadcast = self.method.broadcast(server, ctx)
        routed = {client: self.method.send_to_client(server, ctx.at(client_id=client)) for client in clients}
        locals_ = {client: self.store.get(client) for client in clients}
        phase_result = self.engine.run_phase(PhaseTask(ctx, clients, broadcast, _filled(routed), _filled(locals_)), callbacks)
        for failure in phase_result.failures:
            for callback in callbacks:
                callback.on_client_failure(failure)
        if phase_result.failures and self.config.federation.strict:
            first = phase_result.failures[0]
            if first.has_diverged:
                raise UserError(f"Training has diverged: {first}; lower the learning rate.")
            raise first
        for client, local in sorted(phase_result.locals.items()):
            self.store.stage(client, local)
        record.num_asked += len(clients)
        record.num_answered += len(phase_result.stats)
        record.bytes_down += sum(stats.bytes_down for stats in phase_result.stats)
        record.bytes_up += sum(stats.bytes_up for stats in phase_result.stats)
        record.clients += [(phase.name, stats) for stats in sorted(phase_result.stats, key=lambda stats: stats.client_id)]
        record.failures += phase_result.failures
        record.seconds[phase.name] = record.seconds.get(phase.name, 0.0) + time.perf_counter() - start
        return phase_result, broadcast

    def _reduce(
        self, phase_result: PhaseResult, server: Payload, broadcast: Payload, expected: int, ctx: Context, attempt: int
    ) -> Aggregate:
        aggregate = phase_result.accumulator.finish(server.groups)
        try:
            check_finite(Payload(aggregate.means))
        except ValueError as error:
            raise UserError(
                f"Round {ctx.round + 1}, phase {ctx.phase}: in the mean over clients, {error}: lower training.learning_rate."
            ) from error
        # Every attempt has noise of its own.
        source = SystemNoise() if self.secret_noise else SeededNoise(ctx.rng(f"noise {attempt}"))
        means = self.postprocessor.add_noise(aggregate.means, broadcast, phase_result.accumulator.counts, expected, source)
        return Aggregate(means, aggregate.stacks, aggregate.weight, aggregate.num_clients, aggregate.metrics)


def _reason(failures: Sequence[ClientError]) -> str:
    """Return why most clients failed, in brackets; nothing where none did."""
    reasons = Counter(failure.reason.rstrip(".") for failure in failures)
    return f" ({reasons.most_common(1)[0][0]})" if reasons else ""


def _filled(payloads: Mapping[int, Payload]) -> dict[int, Payload]:
    return {client: payload for client, payload in payloads.items() if payload.groups or payload.scalars}


def _add_metrics(record: RoundRecord, phase: Phase, phases: Sequence[Phase], metrics: Mapping[str, float]) -> None:
    """Add a phase's metrics: those of the last phase keep their names, others get the phase's name before theirs."""
    is_last = phase is phases[-1]
    record.metrics.update({name if is_last else f"{phase.name}.{name}": value for name, value in metrics.items()})
