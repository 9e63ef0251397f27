"""Rehearsal: a run's first steps with its own networks, batch size and shapes of samples, timed and weighed.

Clients go through the round loop and the code of a run's workers. One client answers, with its neighbours where clients
exchange data. Every phase of the run is visited: rounds in which the same phases come again are skipped, as the loop is given
the answers that it had before. Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import Phase
from unisono.core.payload import Payload
from unisono.data.views import make_views
from unisono.engines.devices import num_cores, threads
from unisono.evaluation.config import FRACTIONS, NEED_LABELS, chosen_probes
from unisono.evaluation.features import embed
from unisono.evaluation.probe_data import ProbeData
from unisono.experiment import Experiment
from unisono.federation.client_store import ClientStateStore
from unisono.federation.cohort import CohortConfig
from unisono.federation.loop import LoopConfig, RoundLoop, ServerState
from unisono.fitting import batches_per_turn, num_workers, phase_seconds
from unisono.rehearsal_engine import Limits, MeasuringEngine, Part, TurnCost
from unisono.runs.evaluation import Evaluator

MOST_STAGES = 6
"""Stages that are visited; a run that has more is expected to repeat the last two."""
LONGEST_INTERVAL = 20
"""Rounds between exchanges of data that are expected at most."""
NUM_EMBEDDED = 16
"""Samples that pass the encoder where it is timed."""
TRAINING = 3
"""Forward passes that take as long as one with its backward pass."""


@dataclass(frozen=True)
class Stage:
    """Rounds in a row that have the same phases.

    Args:
        num_rounds: how many.
        phases: each with the cost of a client.
        server: seconds of the server in a round.
    """

    num_rounds: int
    phases: tuple[tuple[Phase, TurnCost], ...]
    server: float


@dataclass(frozen=True)
class Measurement:
    """Result of a rehearsal.

    Args:
        stages: the course of the run.
        batch_size: samples of the step that was measured.
        peak: bytes of a process that makes a step of the whole batch.
        forward: seconds in which the encoder passes one sample, without gradients.
        probes: seconds of all probes on few samples, without these passes.
    """

    stages: tuple[Stage, ...]
    batch_size: int
    peak: float
    forward: float
    probes: float

    @property
    def step(self) -> float:
        """Seconds of the longest step of any phase."""
        return max((cost.step for stage in self.stages for _, cost in stage.phases), default=0.0)


def rehearse(part: Part, limits: Limits | None = None) -> Measurement:
    """Make and measure the steps of a run; raise what the run would raise.

    Args:
        part: of the experiment.
        limits: limits; the defaults where None.
    """
    with threads(1):
        engine = MeasuringEngine(part, limits or Limits())
        shortest = _run_to_the_end(part)
        if shortest is not None and not engine.limits.measure:
            engine.take_answers(shortest)
        stages, server = _run_course(_make_loop(engine), engine)
        samples = part.samples[: NUM_EMBEDDED if engine.limits.measure else 1]
        start = time.process_time()
        embed(engine.method.encoder(server), samples, "cpu")
        forward = (time.process_time() - start) / len(samples)
        probes = 0.0 if part.probe_data is None else _seconds_of_probes(part.probe_data, engine, server, forward)
    return Measurement(stages, engine.batch_size, engine.peak, forward, probes)


def estimate_run(experiment: Experiment, measured: Measurement, untrained: bool = False) -> float:
    """Return the seconds of a whole run on this machine, by the steps of a rehearsal.

    Args:
        experiment: the run's; its clients may have other sizes than those of the rehearsal.
        measured: by a rehearsal of the same networks and phases.
        untrained: whether the run only evaluates untrained weights.
    """
    config, partition = experiment.config, experiment.partition
    one = (_samples_evaluated(experiment) * measured.forward + measured.probes) / num_cores()
    if untrained:
        return one
    every, num_rounds = config.evaluation.probe_every, config.federation.rounds
    total = one * (-(-num_rounds // every) if every else 1)
    total += one if config.evaluation.floors else 0.0
    if config.evaluation.cluster_consistency:
        total += num_rounds * len(experiment.dataset.samples) * measured.forward / num_cores()
    num_batches, mean_size = batches_per_turn(experiment), float(partition.sizes.float().mean())
    cohort = config.cohort.expected_size(partition.num_clients)
    for stage in measured.stages:
        for phase, cost in stage.phases:
            turn = cost.step * num_batches + cost.fixed + cost.per_sample * mean_size
            total += stage.num_rounds * phase_seconds(config, partition.num_clients if phase.all_clients else cohort, turn)
        total += stage.num_rounds * stage.server
    return total


def estimate_memory(experiment: Experiment, measured: Measurement) -> float:
    """Return the bytes of a whole run: all samples, and a process for every worker that has something to do."""
    data, config = experiment.dataset, experiment.config
    samples = sum(part.numel() * part.element_size() for part in (data.samples, data.test_samples))
    return samples + measured.peak * min(num_workers(config), config.cohort.expected_size(experiment.partition.num_clients))


def _samples_evaluated(experiment: Experiment) -> float:
    """Return how many samples pass the encoder in one evaluation."""
    config, data = experiment.config.evaluation, experiment.dataset
    num_train, num_test = data.num_clustered, len(data.test_samples)
    num_test = min(config.max_test_samples or num_test, num_test)
    probes = chosen_probes(config, data.labels is not None, experiment.method.overrides("cluster_model"), num_test > 0)
    learnt = min(config.max_train_samples or num_train, num_train)
    passed = float(num_test + (learnt if {*NEED_LABELS, "kmeans"} & {*probes} else 0))
    if "alignment" in probes:
        passed += 2 * min(learnt, experiment.partition.num_clients * config.max_client_samples)
    if "clusters" in probes:
        passed += 2 * num_test  # those of the round before too
    for name, fraction in FRACTIONS.items():
        if name in probes:
            passed += num_test + TRAINING * config.finetune_epochs * fraction * learnt
    return passed


def _make_loop(engine: MeasuringEngine) -> RoundLoop:
    config = engine.part.config
    options = LoopConfig(
        config.federation, CohortConfig(), config.aggregation, config.server, config.privacy, config.compression
    )
    return RoundLoop(engine.method, engine, ClientStateStore(), options, config.run.seed)


def _run_to_the_end(part: Part) -> MeasuringEngine | None:
    """Run the shortest run of the method, of two rounds if it can be, so that what ends a run is rehearsed too.

    Returns:
        Its engine; None if no run is shorter.
    """
    for num_rounds in range(2, part.info.num_rounds + 1):
        with suppress(UserError):  # a method may need more, such as those before clients exchange data
            engine = MeasuringEngine(replace(part, info=replace(part.info, num_rounds=num_rounds)), Limits(measure=False))
            break
    else:
        return None
    loop = _make_loop(engine)
    loop.run(loop.initial_state(), until=num_rounds)
    return engine


def _run_course(loop: RoundLoop, engine: MeasuringEngine) -> tuple[tuple[Stage, ...], Payload]:
    """Return the stages of the run, and the server's state in the last of them."""
    num_rounds = engine.part.info.num_rounds
    state = loop.initial_state()
    stages: list[Stage] = []
    while state.round < num_rounds:
        phases, first = _phases_of(loop, state), state.round
        engine.seconds_of_clients = 0.0
        start = time.perf_counter()
        following = loop.run_round(state)
        server = max(0.0, time.perf_counter() - start - engine.seconds_of_clients)
        costs = tuple((phase, engine.cost(phase.name)) for phase in phases)
        last = _last_round_of(phases, loop, following, num_rounds)
        stages.append(Stage(last - first + 1, costs, server))
        state = following if last == first else _skip(loop, following, last)
        if len(stages) == MOST_STAGES:
            stages, state = _repeated(stages, num_rounds), replace(state, round=num_rounds)
    return tuple(stages), state.server


def _repeated(stages: Sequence[Stage], num_rounds: int) -> list[Stage]:
    """Return stages that take all rounds of the run: the last two go on by turns, as exchange and training do."""
    *before, one, other = stages
    rest = num_rounds - sum(stage.num_rounds for stage in before)
    first = round(rest * one.num_rounds / (one.num_rounds + other.num_rounds))
    return [*before, replace(one, num_rounds=first), replace(other, num_rounds=rest - first)]


def _last_round_of(phases: Sequence[Phase], loop: RoundLoop, following: ServerState, num_rounds: int) -> int:
    """Return the last round in a row that has these phases.

    Args:
        phases: of a round.
        loop: the round loop, whose engine repeats its answers.
        following: the state after that round.
        num_rounds: of the run.
    """
    if following.round >= num_rounds or _phases_of(loop, following) != phases:
        return following.round - 1
    lowest, highest = following.round, num_rounds - 1
    if loop.method.overrides("client_graph"):  # exchange comes and goes
        for round in range(lowest, min(lowest + LONGEST_INTERVAL, highest)):
            if _phases_of(loop, _skip(loop, following, round)) != phases:
                return round
    while lowest < highest:
        # The first guess is that nothing changes any more, which is so for most methods.
        middle = highest - 1 if highest == num_rounds - 1 else (lowest + highest) // 2
        if _phases_of(loop, _skip(loop, following, middle)) == phases:
            lowest = middle + 1
        else:
            highest = middle
    return lowest


def _skip(loop: RoundLoop, state: ServerState, round: int) -> ServerState:
    """Return the state after this round, if the server has the given state before it."""
    return loop.run_round(replace(state, round=round))


def _phases_of(loop: RoundLoop, state: ServerState) -> tuple[Phase, ...]:
    return tuple(loop.method.phases(state.round, state.server))


def _seconds_of_probes(data: ProbeData, engine: MeasuringEngine, server: Payload, forward: float) -> float:
    """Run all probes on few samples; return their seconds without those of the encoder.

    Args:
        data: the samples.
        engine: knows the method.
        server: the state that is probed.
        forward: seconds in which the encoder passes one sample.
    """
    config, method = engine.part.config, engine.method
    evaluation = config.evaluation.model_copy(update={"floors": False, "finetune_epochs": 1})
    views = make_views(config.views, method.info.input_shape, config.model.input_size)
    rows = (torch.arange(len(data.train_samples)),)
    start = time.process_time()
    Evaluator(evaluation, method, data, config.run.seed, views.pair, rows)(server, 0)
    if evaluation.cluster_consistency:
        method.cluster_consistency(server, data.train_samples.chunk(2), Context(config.run.seed, 0, "consistency"))
    passed = forward * (len(data.train_samples) + len(data.test_samples))
    return max(0.0, time.process_time() - start - passed)
