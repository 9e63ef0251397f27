"""Runs: started or continued in a directory, and finished, by one driver for every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from unisono.backends import OpenBackend, backend_of, standard_callbacks
from unisono.config import Config, resolve
from unisono.core.config import parse_overrides
from unisono.core.errors import UserError
from unisono.core.progress import tell
from unisono.core.work_progress import shown_progress
from unisono.data.fingerprint import fingerprint
from unisono.experiment import UNREADABLE, Experiment, run_path
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import Callback, RoundLoop, RoundRecord, ServerState
from unisono.fitting import prepare
from unisono.loaded import LoadedRun
from unisono.recipes import Layer, assemble, flag_layers
from unisono.report.environment import environment
from unisono.report.files import ReportFiles
from unisono.report.run_report import Projection, write_report
from unisono.report.status import Status
from unisono.runs.checkpoint import DamagedError
from unisono.runs.contact_sheet import save_contact_sheets
from unisono.runs.directory import FLOORS_FILE, START_FILE, RunDirectory
from unisono.runs.evaluation import Evaluation
from unisono.runs.files import write_atomically
from unisono.runs.status_file import StatusFile


def run(
    reference: str | Path | dict[str, Any],
    *,
    callbacks: Sequence[Callback] = (),
    set: Sequence[str] = (),
    progress: bool = True,
    **flags: Any,
) -> LoadedRun:
    """Run a recipe or a method and return the finished run.

    Args:
        reference: path of a TOML file, name of a recipe or of a method, or a dictionary of tables.
        callbacks: callbacks, such as a progress display.
        set: assignments ``section.key=value``.
        progress: say on stderr now and then how far reading, rounds and probes have come.
        **flags: ``method``, ``dataset``, ``clients``, ``alpha``, ``rounds``, ``workers``, ``seed``, ``name``, ``engine``.
    """
    with shown_progress(quiet=not progress):
        experiment, _ = prepare(assemble(reference, [*flag_layers(flags), Layer("--set", parse_overrides(set))]))
        told = Rounds(experiment.config.federation.rounds)
        return start(experiment, run_path(experiment.config), callbacks=[*callbacks, told])


class Rounds(Callback):
    """Callback that tells how many rounds are done.

    Args:
        number: of all rounds.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        tell("rounds", record.round + 1, self._number)


def start(
    experiment: Experiment,
    path: Path,
    *,
    callbacks: Sequence[Callback] = (),
    open_backend: OpenBackend | None = None,
    rounds: int | None = None,
) -> LoadedRun:
    """Run an experiment in a new run directory.

    Args:
        experiment: what ``Experiment.prepare`` made.
        path: the run directory; it must not hold anything yet.
        callbacks: callbacks.
        open_backend: where clients run; the backend that the config asks for where None.
        rounds: see ``execute``.
    """
    directory = RunDirectory.create(path, experiment.config.as_tree())
    if experiment.dataset.unreadable:
        lines = (f"{file}: {reason}\n" for file, reason in experiment.dataset.unreadable)
        write_atomically(directory.path / UNREADABLE, "".join(lines).encode())
    return execute(directory, open_backend or backend_of(experiment), callbacks=callbacks, rounds=rounds)


def resume(
    path: str | Path,
    *,
    callbacks: Sequence[Callback] = (),
    on_note: Callable[[str], None] = lambda note: None,
    rounds: int | None = None,
) -> LoadedRun:
    """Continue a run from its last good checkpoint; the result is bit-identical to that of an undisturbed run.

    Args:
        path: the run directory.
        callbacks: callbacks.
        on_note: told what the user should know, such as that a damaged checkpoint was passed over.
        rounds: see ``execute``.
    """
    directory = RunDirectory.open(Path(path))
    if directory.untrained:
        raise UserError(f"{directory.path} holds the probes of an encoder before training: there is nothing to continue.")
    directory.check_config()
    experiment = Experiment.prepare(resolve(directory.config_tree))
    return execute(directory, backend_of(experiment), callbacks=callbacks, on_note=on_note, rounds=rounds)


def execute(
    directory: RunDirectory,
    open_backend: OpenBackend,
    *,
    callbacks: Sequence[Callback] = (),
    rounds: int | None = None,
    run_id: int | None = None,
    lock_timeout: float = 0.0,
    on_note: Callable[[str], None] = lambda note: None,
) -> LoadedRun:
    """Start or continue the run in a directory and finish it. Every run of every kind goes through this function.

    Args:
        directory: made by ``RunDirectory.create``.
        open_backend: opens the place where clients run.
        callbacks: callbacks beside those that every run has.
        rounds: stop after this many; 0 evaluates the untrained weights; None runs all rounds of the config.
        run_id: Flower's number of the run, on a real federation.
        lock_timeout: seconds to wait for another process to leave the directory.
        on_note: told what the user should know.
    """
    config = resolve(directory.config_tree)
    status = StatusFile(directory, run_id)
    directory.lock(lock_timeout)
    try:
        directory.check_config()
        directory.remove_leftovers()
        directory.manifest.begin(directory.log_files)
        with status:
            directory.write_json("environment.json", environment(config.engine.device))
            state, store = restore(directory, config, on_note)
            with closing(store), open_backend(config, directory) as backend:
                config = resolve(directory.config_tree)  # what a federation's samples decide is known from here on
                if backend.experiment is not None:
                    directory.check_data(fingerprint(backend.experiment.dataset))
                directory.save_run_info(backend.method.info)
                loop = RoundLoop(
                    backend.method,
                    backend.engine,
                    store,
                    config.loop,
                    config.run.seed,
                    secret_noise=backend.is_real,
                )
                state = loop.initial_state() if state is None else state
                if rounds == 0:
                    directory.logs["metrics"].append(_evaluate_untrained(backend.evaluators, state))
                else:
                    backend.engine.open(state.server)  # workers start before callbacks fill the memory that they share
                    if config.evaluation.probe_start and state.round == 0:
                        directory.write_json(START_FILE, _evaluate_untrained(backend.evaluators, state))
                    common = standard_callbacks(backend, config, directory, store, config.federation.rounds)
                    state = loop.run(state, [*backend.evaluators, *common, status, *callbacks], rounds)
                floors = {name: scores for part in backend.evaluators for name, scores in part.floors().items()}
            loaded = LoadedRun(directory, config, backend.method, state.server, state.round)
            if floors:
                directory.write_json(FLOORS_FILE, floors)
            if state.round >= config.federation.rounds:
                loaded.save_model()
                if backend.experiment is not None:
                    data = backend.experiment.dataset
                    shown = data.test_samples if len(data.test_samples) else data.samples
                    save_contact_sheets(directory, backend.method.cluster_model(state.server), shown, config.run.seed)
                # Whoever waits for the status fetches the report too.
                _write_report(
                    directory, config, config.report.projection, Status("finished", state.round, config.federation.rounds)
                )
            if rounds == 0 or state.round >= config.federation.rounds:
                directory.remove_leftovers()  # what a failing disk kept
                directory.manifest.record_all(directory.log_files)
                status.write("finished", state.round)
            return loaded
    finally:
        directory.unlock()
        if status.failed:
            _write_report(directory, config, "pca")  # whoever waits for the error should not wait for t-SNE


def restore(
    directory: RunDirectory, config: Config, on_note: Callable[[str], None]
) -> tuple[ServerState | None, ClientStateStore]:
    """Return the newest good checkpoint of a run, with its logs cut back to it; no state where there is none yet.

    Args:
        directory: the run's, locked.
        config: the run's.
        on_note: told what the user should know.
    """
    checkpoints = directory.checkpoints(config.run.keep_checkpoints)
    for round in reversed(checkpoints.rounds()):
        store = ClientStateStore(_memory_limit(config), directory.spilled)
        try:
            checkpoint = checkpoints.load(round, store)
        except DamagedError as error:
            on_note(f"{error}: falling back to the one before.")
            continue
        for note in directory.cut_logs(checkpoint.log_lengths):
            on_note(note)
        done = round >= config.federation.rounds
        on_note("The run is finished already." if done else f"Continuing after round {round} of {config.federation.rounds}.")
        return checkpoint.state, store
    if checkpoints.rounds():
        raise UserError(
            f"All checkpoints of {directory.path} are damaged, so it cannot be continued: start anew with "
            f"'unisono run {directory.path}/config.toml --name NEW'."
        )
    directory.cut_logs({})
    on_note("There is no checkpoint yet: starting from the beginning.")
    return None, ClientStateStore(_memory_limit(config), directory.spilled)


def _evaluate_untrained(evaluators: Sequence[Evaluation], state: ServerState) -> dict[str, Any]:
    """Return the scores of the weights before the first round."""
    record = RoundRecord(-1)
    for evaluator in evaluators:
        evaluator.evaluate(state, record)
    return record.as_json()


def _write_report(directory: RunDirectory, config: Config, projection: Projection, status: Status | None = None) -> None:
    if config.report.enabled:
        with ReportFiles(directory).errors_logged():
            write_report(directory, projection, status)


def _memory_limit(config: Config) -> int:
    return int(config.engine.state_memory_gib * 2**30)
