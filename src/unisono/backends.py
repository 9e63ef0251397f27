"""Backends: the parts in which an embedded run, a Flower simulation and a real federation differ."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unisono.config import Config, resolve
from unisono.core.config import parse_json
from unisono.core.errors import UserError
from unisono.core.method import Method
from unisono.engines.embedded import EmbeddedEngine
from unisono.engines.shards import WorkerSetup
from unisono.experiment import Experiment
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import Callback, Engine
from unisono.privacy.accountant import UserLevelAccountant
from unisono.report.collector import ReportCollector
from unisono.runs.callbacks import Checkpointing, ExchangeLog, Failures, Logs, PrivacyLedger
from unisono.runs.directory import RunDirectory
from unisono.runs.evaluation import ClassesPerClient, Consistency, Evaluation, EvaluationCallback
from unisono.runs.privacy_report import PrivacyReport
from unisono.runs.releases import ReleaseLog
from unisono.runs.trackers import Tracking

SEEDED_NOISE = "The noise on model updates is drawn from run.seed: whoever knows the seed can remove it, so it protects nobody."
"""Warning of a simulation. On a real federation noise comes from the operating system."""


@dataclass(frozen=True)
class Backend:
    """A place where clients run, ready for the round loop. Whoever opens it has checked that the config fits the method.

    Args:
        method: built for the data of these clients.
        engine: runs the clients.
        evaluators: callbacks that add scores to the record of a round before anything is written.
        client_sizes: number of samples by client, as far as the server knows it.
        sampling: how the privacy accountant may assume that cohorts are drawn.
        collector: keeps what the report needs; None without a report.
        experiment: the data of a simulation; None where samples stay with their owners.
        releases: counts what a real federation has released; None in a simulation, where nobody reads what was begun.
    """

    method: Method
    engine: Engine
    evaluators: Sequence[Evaluation]
    client_sizes: Mapping[int, int]
    sampling: Literal["fixed", "poisson", "none"]
    collector: Callback | None = None
    experiment: Experiment | None = None
    releases: ReleaseLog | None = None

    @property
    def is_real(self) -> bool:
        """True if clients have owners: noise that protects them must not come from the run's seed, which all of them know."""
        return self.experiment is None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the method about clients of these sizes."""
        return tuple(self.method.preflight_warnings(list(self.client_sizes.values())))


OpenBackend = Callable[[Config, RunDirectory], AbstractContextManager[Backend]]


def backend_of(experiment: Experiment) -> OpenBackend:
    """Return the backend that the experiment's config asks for."""
    return embedded(experiment) if experiment.config.engine.kind == "embedded" else simulated(experiment)


def embedded(experiment: Experiment) -> OpenBackend:
    """Return a backend of worker processes on this machine."""
    if experiment.config.aggregation.screen > 0:
        raise UserError("aggregation.screen compares answers one by one, which the embedded engine adds up: set it to 0.")

    @contextmanager
    def opened(config: Config, directory: RunDirectory) -> Iterator[Backend]:
        with EmbeddedEngine(experiment.worker_setup(), config.engine) as engine:
            yield _simulation(experiment, engine, directory)

    return opened


def simulated(experiment: Experiment, grid: Any = None, num_nodes: int | None = None) -> OpenBackend:
    """Return a backend of Flower's simulation on Ray.

    Args:
        experiment: holds the data of all clients.
        grid: Flower's, of a simulation that runs already; None starts one.
        num_nodes: number of nodes on that grid; any number serves.
    """

    @contextmanager
    def opened(config: Config, directory: RunDirectory) -> Iterator[Backend]:
        from unisono.engines.flower.environment import require_flower

        require_flower(ray=True)
        from unisono.engines.flower.simulation import ExternalGridEngine, RayEngine

        parts = experiment.worker_setup(), config.engine, simulation_spec(config)
        new = RayEngine(*parts, build_worker_setup) if grid is None else ExternalGridEngine(grid, *parts, num_nodes or 1)
        with new as engine:
            yield _simulation(experiment, engine, directory)

    return opened


def simulation_spec(config: Config) -> str:
    """Return what an actor of a simulation needs to open the same worker setup, as text."""
    return json.dumps({"config": config.as_tree(), "directory": str(Path.cwd())})


def build_worker_setup(run_spec: str) -> tuple[WorkerSetup, str]:
    """Return the worker setup that ``simulation_spec`` describes, and the name of its device."""
    values = parse_json(run_spec)
    if Path(values["directory"]).is_dir():
        os.chdir(values["directory"])  # paths in a recipe are relative to where the run was started
    config = resolve(values["config"])
    return Experiment.prepare(config).worker_setup(), config.engine.device


def report_collector(experiment: Experiment, directory: RunDirectory) -> ReportCollector:
    """Return the callback that keeps what the report of a simulation needs."""
    config = experiment.config
    return ReportCollector(
        directory,
        config.report,
        experiment.method,
        experiment.dataset,
        experiment.partition,
        experiment.clients.samples,
        config.run.seed,
    )


def standard_callbacks(
    backend: Backend, config: Config, directory: RunDirectory, store: ClientStateStore, num_rounds: int
) -> list[Callback]:
    """Return the callbacks of every run, in their order: logs write what others added, the checkpoint comes last."""
    method, experiment, privacy = backend.method, backend.experiment, config.privacy
    found: list[Callback] = [] if backend.releases is None else [backend.releases]
    if method.overrides("client_graph"):
        labels = None if experiment is None else experiment.dataset.labels
        found.append(ExchangeLog(directory, store, method, backend.engine.num_clients, labels))
    accountant = None
    if privacy.noise_multiplier > 0:
        cohort = config.cohort.expected_size(backend.engine.num_clients)
        num_clients = config.cohort.num_taking_part(backend.engine.num_clients)
        accountant = UserLevelAccountant(privacy.noise_multiplier, privacy.delta, backend.sampling, num_clients, cohort)
        if backend.releases is not None:
            accountant.more_rounds = lambda: 0 if backend.releases is None else backend.releases.lost
        found.append(PrivacyLedger(directory, accountant, privacy.delta, method.shares))
    warnings = [*backend.warnings, *([] if backend.is_real or accountant is None else [SEEDED_NOISE])]
    found.append(PrivacyReport(directory, method.shares, method.release_guarantee(), accountant, warnings))
    if backend.collector is not None:
        found.append(backend.collector)
    found.append(Tracking(config.track, directory, config.as_tree(), num_rounds))
    found += [Logs(directory), Failures(directory)]
    run = config.run
    return [*found, Checkpointing(directory, store, run.checkpoint_every, run.keep_checkpoints, num_rounds)]


def _simulation(experiment: Experiment, engine: Engine, directory: RunDirectory) -> Backend:
    """Return the backend of a simulation on an engine that is open."""
    config, partition = experiment.config, experiment.partition
    evaluation = config.evaluation
    layers = directory.probe_layers if evaluation.warm_start else None
    evaluators: list[Evaluation] = [
        EvaluationCallback(experiment.evaluator(), evaluation.probe_every, config.federation.rounds, layers),
        ClassesPerClient(partition, experiment.dataset.labels),
    ]
    if evaluation.cluster_consistency:
        evaluators.append(Consistency(experiment.method, experiment.clients, config.run.seed))
    return Backend(
        experiment.method,
        engine,
        evaluators,
        dict(enumerate(partition.sizes.tolist())),
        config.cohort.sampling if config.cohort.availability == "always" else "none",
        report_collector(experiment, directory) if config.report.enabled else None,
        experiment,
    )
