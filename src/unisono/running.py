"""An experiment run, or continued, in its directory: engine, observers, checkpoints, page."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.config import Config, resolve
from unisono.core.errors import ClientError, UserError
from unisono.engines.embedded import EmbeddedEngine
from unisono.engines.lanes import Workshop
from unisono.experiment import Experiment, run_path
from unisono.federation.client_store import ClientStore
from unisono.federation.rounds import Federation, Observer, State
from unisono.loaded import LoadedRun
from unisono.methods.exchange import Exchange
from unisono.privacy.accountant import UserLevelAccountant
from unisono.privacy.guarantee import ReleasesStatistics
from unisono.recipes import build_tree
from unisono.report.environment import environment
from unisono.report.files import ReportFiles
from unisono.report.gathering import Gathering
from unisono.report.run_page import Projection, write_page
from unisono.runs.checkpoint import DamagedError
from unisono.runs.consistency import ClustersInTwoLevels, Consistency
from unisono.runs.contact_sheet import save_contact_sheets
from unisono.runs.directory import RunDirectory
from unisono.runs.exchange_log import ExchangeLog
from unisono.runs.observers import Checkpointing, Failures, Logs, PrivacyLedger
from unisono.runs.privacy_report import PrivacyReport
from unisono.runs.probing import Probing
from unisono.runs.trackers import Tracking

if TYPE_CHECKING:
    from unisono.engines.flower.simulation import SimulatedEngine


def run(
    reference: str | Path | dict[str, Any], *, observers: Sequence[Observer] = (), set: Sequence[str] = (), **flags: Any
) -> LoadedRun:
    """Runs a recipe or a method and returns the finished run.

    Args:
        reference: path of a TOML file, name of a recipe or of a method, or a dictionary of tables.
        observers: look on, such as a progress display.
        set: assignments ``section.key=value``.
        **flags: ``method``, ``dataset``, ``clients``, ``alpha``, ``rounds``, ``workers``, ``seed``, ``name``, ``engine``.
    """
    config = resolve(build_tree(reference, flags, set))
    return start(Experiment.prepare(config), run_path(config), observers=observers)


def start(
    experiment: Experiment,
    path: Path,
    *,
    observers: Sequence[Observer] = (),
    open_engine: Callable[[Experiment], EmbeddedEngine | SimulatedEngine] | None = None,
) -> LoadedRun:
    """Runs an experiment in a new run directory.

    Args:
        experiment: what ``Experiment.prepare`` made.
        path: the run directory; it must not hold anything yet.
        observers: look on.
        open_engine: the engine to run on; the one that the config asks for where None.
    """
    config = experiment.config
    directory = RunDirectory.create(path, config.as_tree())
    directory.lock()
    directory.save_setting(experiment.method.setting)
    store = ClientStore(_memory_limit(config))
    return _execute(experiment, directory, None, store, observers, open_engine)


def resume(
    path: str | Path, *, observers: Sequence[Observer] = (), on_note: Callable[[str], None] = lambda note: None
) -> LoadedRun:
    """Continues a run from its last good checkpoint; the result has the same bits as an undisturbed run.

    Args:
        path: the run directory.
        observers: look on.
        on_note: told what the user should know, such as that a damaged checkpoint was passed over.
    """
    directory = RunDirectory.open(Path(path))
    if directory.untrained:
        raise UserError(f"{directory.path} holds the probes of an encoder before training: there is nothing to continue.")
    config = resolve(directory.config_tree)
    experiment = Experiment.prepare(config)
    directory.lock()
    directory.save_setting(experiment.method.setting)
    state, store = restore(directory, config, on_note)
    return _execute(experiment, directory, state, store, observers)


def restore(directory: RunDirectory, config: Config, on_note: Callable[[str], None]) -> tuple[State | None, ClientStore]:
    """The newest good checkpoint of a run, with its logs cut back to it; no state where there is none yet.

    Args:
        directory: the run's, locked; unlocked again if nothing can be restored.
        config: the run's.
        on_note: told what the user should know.
    """
    checkpoints = directory.checkpoints(config.run.keep_checkpoints)
    for round in reversed(checkpoints.rounds()):
        store = ClientStore(_memory_limit(config))
        try:
            checkpoint = checkpoints.load(round, store)
        except DamagedError as error:
            on_note(f"{error}: falling back to the one before.")
            continue
        directory.cut_logs(checkpoint.log_lengths)
        done = round >= config.federation.rounds
        on_note("The run is finished already." if done else f"Continuing after round {round} of {config.federation.rounds}.")
        return checkpoint.state, store
    if checkpoints.rounds():
        directory.unlock()
        raise UserError(
            f"All checkpoints of {directory.path} are damaged, so it cannot be continued: start anew with "
            f"'unisono run {directory.path}/config.toml --name NEW'."
        )
    directory.cut_logs({})
    on_note("There is no checkpoint yet: starting from the beginning.")
    return None, ClientStore(_memory_limit(config))


def make_engine(experiment: Experiment) -> EmbeddedEngine | SimulatedEngine:
    """The engine that the config asks for."""
    config = experiment.config
    if config.engine.kind == "embedded":
        return EmbeddedEngine(experiment.workshop(), config.engine)
    from unisono.engines.flower.environment import require_flower

    require_flower(ray=True)
    from unisono.engines.flower.simulation import SimulatedEngine

    return SimulatedEngine(experiment.workshop(), config.engine, simulation_terms(config), open_workshop)


def simulation_terms(config: Config) -> str:
    """What an actor of a simulation must know to open the same workshop."""
    return json.dumps({"config": config.as_tree(), "directory": str(Path.cwd())})


def open_workshop(terms: str) -> tuple[Workshop, str]:
    """The workshop that ``simulation_terms`` describe, and the name of its device."""
    values = json.loads(terms)
    if Path(values["directory"]).is_dir():
        os.chdir(values["directory"])  # paths in a recipe are relative to where the run was started
    config = resolve(values["config"])
    return Experiment.prepare(config).workshop(), config.engine.device


def gathering(experiment: Experiment, directory: RunDirectory) -> Gathering:
    """Looks on for the run's page."""
    config = experiment.config
    return Gathering(
        directory,
        config.report,
        experiment.method,
        experiment.dataset,
        experiment.partition,
        experiment.clients.samples,
        config.run.seed,
    )


def _execute(
    experiment: Experiment,
    directory: RunDirectory,
    state: State | None,
    store: ClientStore,
    observers: Sequence[Observer],
    open_engine: Callable[[Experiment], EmbeddedEngine | SimulatedEngine] | None = None,
) -> LoadedRun:
    """Runs to the end in a directory that is locked already, and unlocks it."""
    config = experiment.config
    try:
        directory.write_json("environment.json", environment(config.engine.device))
        (directory.path / "status.json").unlink(missing_ok=True)  # it tells how an earlier attempt ended
        with (open_engine or make_engine)(experiment) as engine:
            federation = Federation(experiment.method, engine, store, config.federation_sections, config.run.seed)
            state = federation.start() if state is None else state
            engine.open(state.server)
            state = federation.run(state, _observers(experiment, directory, store, observers))
        loaded = LoadedRun(directory, config, experiment.method, state.server, state.round)
        loaded.save_model()
        shown = experiment.dataset.test_samples if len(experiment.dataset.test_samples) else experiment.dataset.samples
        save_contact_sheets(directory, experiment.method.assigner(state.server), shown, config.run.seed)
        directory.write_json("status.json", {"status": "finished", "round": state.round})
    except Exception as error:
        directory.unlock()
        with ReportFiles(directory).guarded():
            directory.write_json("status.json", {"status": "failed", "reason": _reason(error)})
        _write_page(directory, config, "pca")  # whoever waits for the error should not wait for t-SNE
        raise
    finally:
        store.close()
        directory.unlock()
    _write_page(directory, config, config.report.projection)
    return loaded


def _observers(
    experiment: Experiment, directory: RunDirectory, store: ClientStore, extra: Sequence[Observer]
) -> list[Observer]:
    """In the order in which they look on: probes add to the record, logs write it, the checkpoint comes last."""
    config = experiment.config
    num_rounds = config.federation.rounds
    layers = directory.probe_layers if config.evaluation.warm_start else None
    found: list[Observer] = [Probing(experiment.probe(), config.evaluation.probe_every, num_rounds, layers)]
    if isinstance(experiment.method, Exchange):
        found.append(ExchangeLog(directory, store, experiment.partition.indices, experiment.dataset.labels))
    if config.evaluation.consistency and isinstance(experiment.method, ClustersInTwoLevels):
        found.append(Consistency(experiment.method, experiment.clients, config.run.seed))
    method, accountant = experiment.method, None
    if config.privacy.noise_multiplier > 0:
        accountant = _accountant(config, len(experiment.clients))
        found.append(PrivacyLedger(directory, accountant, config.privacy.delta, method.shares))
    guarantee = method.guarantee if isinstance(method, ReleasesStatistics) else None
    found.append(PrivacyReport(directory, method.shares, guarantee, accountant, experiment.forewarnings))
    if config.report.enabled:
        found.append(gathering(experiment, directory))
    found.append(Tracking(config.track, directory, config.as_tree(), num_rounds))
    found += [Logs(directory), Failures(directory)]
    run = config.run
    found.append(Checkpointing(directory, store, run.checkpoint_every, run.keep_checkpoints, num_rounds))
    return [*found, *extra]


def _accountant(config: Config, num_clients: int) -> UserLevelAccountant:
    always = config.cohort.availability == "always"
    return UserLevelAccountant(
        config.privacy.noise_multiplier,
        config.privacy.delta,
        config.cohort.sampling if always else "none",
        num_clients,
        config.cohort.expected_size(num_clients),
    )


def _reason(error: Exception) -> str:
    """Why a run failed; rounds are counted from 1, as on its page."""
    if not isinstance(error, ClientError):
        return str(error)
    return f"client {error.client_id}, phase {error.phase} of round {error.round + 1}: {error.reason}"


def _write_page(directory: RunDirectory, config: Config, projection: Projection) -> None:
    if config.report.enabled:
        with ReportFiles(directory).guarded():
            write_page(directory, projection)


def _memory_limit(config: Config) -> int:
    return int(config.engine.state_memory * 2**30)
