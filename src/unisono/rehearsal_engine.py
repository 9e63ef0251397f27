"""The engine of a rehearsal: few clients answer, and each phase is timed and weighed when it is asked for the first time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unisono.config import Config
from unisono.core.errors import ClientError, UserError
from unisono.core.method import Method, RunInfo
from unisono.core.payload import Payload
from unisono.engines.devices import resolve_devices
from unisono.engines.memory import is_out_of_memory, peak_memory, reset_peak_memory
from unisono.engines.shards import ShardRunner, ShardTask, WorkerSetup
from unisono.evaluation.probe_data import ProbeData
from unisono.experiment import Experiment
from unisono.federation.client_turn import FederatedDataset
from unisono.federation.loop import Callback, PhaseResult, PhaseTask
from unisono.federation.postprocess import Postprocessor
from unisono.methods.training_loop import TrainingConfig
from unisono.models.optimizers import watchers

FEW = 4
"""Samples of the smallest batch that is measured."""
FEWEST = 2
"""Samples of a batch that is not; batch normalisation needs two."""
FEW_ROWS = 16
"""Samples of a client that is not measured."""
MOST_ROWS = 256
"""Samples of a client that is measured, where its batch is no larger."""
MOST_NEIGHBORS = 4
NUM_PROBED = 64
"""Samples that probes look at."""
SEVERAL = (5, 3, 2, 4, 7, 11)
"""Numbers of steps to measure in a row; a method may refuse some."""
SHORT = 0.3
"""Seconds of a step below which several are measured."""


@dataclass(frozen=True)
class Limits:
    """Limits of a rehearsal.

    Args:
        longest_step: seconds that a step may take by the look of a small one; a larger batch is cut until it is below.
        largest_step: bytes that it may take, likewise; None: no limit.
        measure: False makes one step of the smallest batch in every phase, and measures no more than that.
    """

    longest_step: float = 10.0
    largest_step: float | None = None
    measure: bool = True


@dataclass(frozen=True)
class Part:
    """The part of an experiment that is rehearsed, small enough to be sent to another process.

    Args:
        config: with a backbone in place of "auto".
        info: facts about the whole run.
        clients: who answers; the first one is measured.
        samples: of the first client, the rows that are used.
        labels: theirs, where the method sees labels.
        num_samples: how many the first client has in the run.
        num_clustered_rows: as in ``ClientData``, of the rows that are used.
        probe_data: few samples for the probes; None to leave them out.
    """

    config: Config
    info: RunInfo
    clients: tuple[int, ...]
    samples: Tensor
    labels: Tensor | None
    num_samples: int
    num_clustered_rows: int | None
    probe_data: ProbeData | None

    @staticmethod
    def of(experiment: Experiment) -> Part:
        """Return the part with the largest client of an experiment."""
        config, partition = experiment.config, experiment.partition
        largest = int(partition.sizes.argmax())
        rows = partition.indices[largest]
        visible = experiment.clients.labels
        if visible is not None:  # labelled samples first, as few are
            rows = rows[(visible[rows] < 0).long().argsort(stable=True)]
        rows = rows[: max(config.training.batch_size, MOST_ROWS)]
        clustered = rows[rows < experiment.dataset.num_clustered]
        rows = torch.cat((clustered, rows[rows >= experiment.dataset.num_clustered]))
        graph = experiment.method.client_graph(config.run.seed)
        others = [] if graph is None else list(graph.neighbors(largest))[:MOST_NEIGHBORS]
        if config.aggregation.rule == "multi-krum":  # it refuses fewer
            others = [client for client in range(partition.num_clients) if client != largest]
            others = others[: 2 * config.aggregation.byzantine + 2]
        return Part(
            config,
            experiment.method.info,
            (largest, *others),
            experiment.clients.samples[rows],
            None if visible is None else visible[rows],
            len(partition.indices[largest]),
            len(clustered) if experiment.dataset.num_unlabelled else None,
            _few_of(experiment.probe_data()),
        )

    @property
    def batch_size(self) -> int:
        """Samples of a step of the run."""
        return min(self.config.training.batch_size, self.num_samples)

    def method(self, **training: int | None) -> Method:
        """Return the method of the run, with some options of ``[training]`` replaced."""
        sections = tuple(
            section.model_copy(update=training) if isinstance(section, TrainingConfig) else section
            for section in self.info.sections
        )
        return self.config.method_class(self.config.method, replace(self.info, sections=sections))


@dataclass(frozen=True)
class TurnCost:
    """Seconds of a client in a phase.

    Args:
        step: seconds of a step of the whole batch; 0 where the phase trains nothing.
        fixed: seconds besides steps.
        per_sample: seconds besides steps for every sample of the client.
    """

    step: float
    fixed: float
    per_sample: float

    @staticmethod
    def fitted(step: float, fewer: tuple[int, float], more: tuple[int, float]) -> TurnCost:
        """Return the cost of a phase from two pairs of samples and seconds besides steps."""
        (low, first), (high, second) = fewer, more
        per_sample = max(0.0, (second - first) / (high - low)) if high > low else 0.0
        return TurnCost(step, max(0.0, first - per_sample * low), per_sample)


class MeasuringEngine:
    """Engine of few clients in this process; a phase that was asked for before gets the same answers again.

    Args:
        part: what is rehearsed.
        limits: limits.
    """

    def __init__(self, part: Part, limits: Limits) -> None:
        self.part = part
        self.limits = limits
        self.peak = 0.0
        self.batch_size = min(FEW if limits.measure else FEWEST, part.batch_size)
        self.seconds_of_clients = 0.0
        own_steps = part.config.training.local_steps if part.config.method_class.overrides("client_graph") else None
        # The steps of a round decide in which rounds clients exchange data.
        self.method = part.method(batch_size=self.batch_size, local_steps=own_steps or 1)
        self._few = self.batch_size
        self._device = resolve_devices(part.config.engine.device)[0]
        self._few_rows = min(FEW_ROWS, len(part.samples))
        self._runner = ShardRunner(self._setup(self.method, self._few_rows), self._device)
        self._several = self._find_several()
        self._asked: frozenset[str] = frozenset()
        self._costs: dict[str, TurnCost] = {}
        self._results: dict[tuple[str, frozenset[str]], tuple[PhaseResult, TurnCost]] = {}

    @property
    def num_clients(self) -> int:
        """Size of the federation."""
        return self.part.info.num_clients

    def open(self, server: Payload) -> None:
        """Do nothing: clients run in this process."""

    def available(self) -> Sequence[int]:
        """Return the clients that answer."""
        return sorted(self.part.clients)

    def cost(self, phase: str) -> TurnCost:
        """Return the cost of a client in a phase, as it was asked for last."""
        return self._costs[phase]

    def run_phase(self, task: PhaseTask, callbacks: Sequence[Callback]) -> PhaseResult:
        """Return the clients' answers; measure the first client if the phase is new."""
        start = time.perf_counter()
        phase = task.ctx.phase
        # Where clients exchange data, a turn depends on what they got before.
        key = phase, self._asked if self.method.overrides("client_graph") else frozenset[str]()
        if key not in self._results:
            result = self._run(task, task.clients, self.method, self._few_rows)
            measured = self.limits.measure and not result.failures
            self._results[key] = result, self._measure(task) if measured else TurnCost(0.0, 0.0, 0.0)
        result, self._costs[phase] = self._results[key]
        self._asked |= {phase}
        self.seconds_of_clients += time.perf_counter() - start
        return result

    def take_answers(self, other: MeasuringEngine) -> None:
        """Give the clients' answers in a run of another length again, unless the rounds decide what clients exchange."""
        if not self.method.overrides("client_graph"):
            self._results.update(other._results)

    def _measure(self, task: PhaseTask) -> TurnCost:
        """Return the cost of the first client, from turns of one and of several steps, of few and of more samples."""
        more = len(self.part.samples)
        fewer = min(more, max(2 * self._few, more // 4))
        with _counted_steps() as count:
            one = self._seconds(task, 1, self._few, fewer)
        reset_peak_memory(self._device)
        if count() == 0:
            turn = self._seconds(task, 1, self._few, more)
            self.peak = max(self.peak, peak_memory(self._device))
            return TurnCost.fitted(0.0, (fewer, one), (more, turn))
        several = self._seconds(task, self._several, self._few, fewer)
        small_step = max(0.0, (several - one) / (self._several - 1)) if self._several > 1 else one
        small_peak = peak_memory(self._device)
        turn = self._seconds(task, 1, self._few, more)
        besides = TurnCost.fitted(0.0, (fewer, one - small_step), (more, turn - small_step))
        return replace(besides, step=self._step(task, small_step, small_peak, besides))

    def _step(self, task: PhaseTask, small_step: float, small_peak: float, besides: TurnCost) -> float:
        """Return the seconds of a step of the whole batch; one that is too large is cut in halves and scaled up."""
        few, whole = self._few, self.part.batch_size
        if whole <= 2 * few:
            size, per_sample = min(whole, 2 * few), 0.0
        else:
            reset_peak_memory(self._device)
            self._seconds(task, 1, 2 * few, 2 * few)
            per_sample = max(0.0, (peak_memory(self._device) - small_peak) / few)
            size = whole
        limit = self.limits.largest_step
        while size > 2 * few and (
            small_step / few * size > self.limits.longest_step or (limit and small_peak + per_sample * (size - few) > limit)
        ):
            size //= 2
        while True:
            try:
                reset_peak_memory(self._device)
                seconds, number = self._seconds(task, 1, size, size), 1
                peak = peak_memory(self._device)
                if seconds < SHORT:
                    number = self._several
                    seconds = self._seconds(task, number, size, size)
                break
            except ClientError as error:
                if size <= few or not is_out_of_memory(error.reason):
                    raise
                size //= 2
        slope = max(0.0, (peak - small_peak) / (size - few)) if size > few else per_sample
        self.peak = max(self.peak, peak + slope * (whole - size))
        self.batch_size = size
        step = max(0.0, (seconds - besides.fixed - besides.per_sample * size) / number)
        per_sample = max(0.0, (step - small_step) / (size - few)) if size > few else small_step / few
        return step + per_sample * (whole - size)

    def _find_several(self) -> int:
        """Return a number of steps that the method takes for a turn; 1 where it takes no other."""
        for number in SEVERAL:
            with suppress(UserError):
                self.part.method(batch_size=self._few, local_steps=number)
                return number
        return 1

    def _seconds(self, task: PhaseTask, num_steps: int, batch_size: int, num_rows: int) -> float:
        """Return the seconds of a turn of the first client; raise a ClientError if it fails."""
        method = self.part.method(batch_size=batch_size, local_steps=num_steps)
        clock = time.process_time if self._device.type == "cpu" else time.perf_counter  # other programs may be at work
        start = clock()
        result = self._run(task, self.part.clients[:1], method, num_rows)
        seconds = clock() - start
        if result.failures:
            raise result.failures[0]
        return seconds

    def _run(self, task: PhaseTask, clients: Sequence[int], method: Method, num_rows: int) -> PhaseResult:
        """Return the answers of clients that have this many of the samples each."""
        self._runner.setup = self._setup(method, num_rows)
        return self._runner.run(ShardTask(0, task.ctx, clients, task.routed, task.locals), task.broadcast)

    def _setup(self, method: Method, num_rows: int) -> WorkerSetup:
        part, config = self.part, self.part.config
        spread = torch.linspace(0, len(part.samples) - 1, num_rows).long()  # labelled and others, clustered and others
        rows = [spread if client in part.clients else spread[:0] for client in range(part.info.num_clients)]
        clients = FederatedDataset(part.samples, rows, part.labels, part.num_clustered_rows)
        postprocessor = Postprocessor(config.privacy, config.compression, method.shares)
        return WorkerSetup(method, clients, postprocessor, config.aggregation)


@contextmanager
def _counted_steps() -> Iterator[Callable[[], int]]:
    """Yield a function that returns how many steps optimisers have made in the block."""
    number = 0

    def count() -> None:
        nonlocal number
        number += 1

    watchers.append(count)
    try:
        yield lambda: number
    finally:
        watchers.remove(count)


def _few_of(data: ProbeData) -> ProbeData:
    """Return a few training samples with labels, if any has one, and a few test samples."""
    labels = data.train_labels
    rows = torch.arange(len(data.train_samples)) if labels is None else (labels >= 0).nonzero().flatten()
    rows = rows if len(rows) else torch.arange(len(data.train_samples))
    rows = rows[_spread(len(rows), NUM_PROBED)]
    tested = _spread(len(data.test_samples), NUM_PROBED // 2)
    tuned = None if data.finetune_samples is None else _spread(len(data.finetune_samples), NUM_PROBED)
    return ProbeData(
        data.train_samples[rows],
        _at(labels, rows),
        data.test_samples[tested],
        _at(data.test_labels, tested),
        _at(data.true_labels, rows),
        _at(data.finetune_samples, tuned),
        _at(data.finetune_labels, tuned),
    )


def _spread(length: int, number: int) -> Tensor:
    """Return so many positions at equal distances, or all."""
    return torch.linspace(0, max(0, length - 1), min(number, length)).long()


def _at(values: Tensor | None, rows: Tensor | None) -> Tensor | None:
    return None if values is None or rows is None else values[rows]
