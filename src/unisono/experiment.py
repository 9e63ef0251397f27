"""A config put together and run: data, method, engine, observers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from unisono.config import Config, build_tree, resolve
from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.method import Method, Setting
from unisono.core.payload import Payload
from unisono.data.datasets import Dataset, load_dataset
from unisono.data.labelled import draw_labelled, hide_labels
from unisono.data.partition import Partition, make_partition
from unisono.data.shift import apply_shift
from unisono.data.views import make_views
from unisono.engines.devices import resolve_devices
from unisono.engines.embedded import EmbeddedEngine
from unisono.engines.lanes import Workshop
from unisono.evaluation.probes import ProbeData, check_probes
from unisono.federation.client_store import ClientStore
from unisono.federation.postprocess import Postprocessor
from unisono.federation.rounds import Federation, Observer, State
from unisono.federation.whitelist import check_consent
from unisono.federation.worker import Clients
from unisono.loaded import LoadedRun
from unisono.methods.exchange import Exchange
from unisono.models.nets import build_seeded
from unisono.privacy.accountant import UserLevelAccountant
from unisono.privacy.guarantee import ReleasesStatistics
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
from unisono.runs.probing import Probing, WholeProbe
from unisono.runs.trackers import Tracking, check_trackers

if TYPE_CHECKING:
    from unisono.engines.flower.simulation import SimulatedEngine


@dataclass(frozen=True)
class Experiment:
    """Everything that a config describes, loaded and checked, before anything is written.

    Args:
        config: the resolved config.
        dataset: all samples, as they come from their source.
        partition: who holds which of them.
        labels: the labels that exist, -1 where hidden; None where the data set has none.
        method: what is learnt.
        clients: the samples as their clients see them, with labels if the method may see any.
    """

    config: Config
    dataset: Dataset
    partition: Partition
    labels: Tensor | None
    method: Method
    clients: Clients

    @staticmethod
    def prepare(config: Config) -> Experiment:
        """Loads the data and builds the method; a UserError if the parts of the config do not fit each other."""
        dataset = load_dataset(config.data)
        partition = make_partition(config.partition, dataset.labels, dataset.owners, len(dataset.samples), config.run.seed)
        setting = Setting(
            dataset.input_shape,
            dataset.mean,
            dataset.std,
            dataset.num_classes,
            len(partition.indices),
            config.federation.rounds,
            config.method_sections,
        )
        method = config.method_class(config.method, setting)
        if method.needs_labels and dataset.labels is None:
            raise UserError(f"method {config.method_name!r} needs labels, and data.dataset {config.data.dataset!r} has none.")
        build_seeded(method.build, 0)  # a backbone that does not fit the data is better noticed now than in a half-made run
        if isinstance(method, Exchange):
            method.graph(config.run.seed)
        check_consent(method.shares, config.consent)
        check_privacy(config)
        if config.privacy.secure_aggregation:
            raise UserError(
                "privacy.secure_aggregation hides updates from the server of a real federation: a simulation holds all data in "
                "one place anyway, so run it with 'unisono deploy run'."
            )
        method.forewarnings(partition.sizes.tolist())  # it may need a package that is missing
        if config.evaluation.consistency and not isinstance(method, ClustersInTwoLevels):
            raise UserError(
                f"evaluation.consistency compares local with global clusters, and method {config.method_name!r} has none: "
                "set it to false."
            )
        check_trackers(config.track)
        resolve_devices(config.engine.device)
        config.aggregation.check(config.cohort.expected_size(len(partition.indices)))
        check_probes(
            config.evaluation,
            has_labels=dataset.labels is not None,
            num_test_samples=len(dataset.test_samples),
            has_assigner=config.method_class.assigner is not Method.assigner,
        )
        samples = apply_shift(config.shift, dataset.samples, partition, config.run.seed)
        labels = _visible_labels(config, dataset, partition)
        clients = Clients(samples, partition.indices, labels if method.needs_labels else None)
        return Experiment(config, dataset, partition, labels, method, clients)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that the user should read before the run."""
        return (*self.partition.notes, *_scaling_notes(self.config), *self.forewarnings)

    @property
    def forewarnings(self) -> tuple[str, ...]:
        """What the method says of clients of these sizes."""
        return tuple(self.method.forewarnings(self.partition.sizes.tolist()))

    def workshop(self) -> Workshop:
        """What the engine's workers hold."""
        config = self.config
        postprocessor = Postprocessor(config.privacy, config.compression, self.method.shares)
        return Workshop(self.method, self.clients, postprocessor, config.aggregation)

    def probe_data(self) -> ProbeData:
        """Samples and labels that probes use: training samples as their clients see them, test samples as they are."""
        data = self.dataset
        labels = data.labels if self.config.labels.probe == "all" else self.labels
        return ProbeData(self.clients.samples, labels, data.test_samples, data.test_labels)

    def initial_server(self) -> Payload:
        """The server's payload before the first round: untrained weights."""
        return self.method.init_server(Context(self.config.run.seed))

    def probe(self) -> WholeProbe:
        """The config's probes on this data, for any state of the server."""
        config = self.config
        views = make_views(config.views, self.dataset.input_shape)
        return WholeProbe(
            config.evaluation, self.method, self.probe_data(), config.run.seed, views.pair, self.partition.indices
        )


def run(
    reference: str | Path | dict[str, Any], *, observers: Sequence[Observer] = (), set: Sequence[str] = (), **flags: Any
) -> LoadedRun:
    """Runs a recipe or a method and returns the finished run.

    Args:
        reference: path of a TOML file, name of a recipe or of a method, or a dictionary of tables.
        observers: look on, such as a progress display.
        set: assignments ``section.key=value``.
        **flags: ``dataset``, ``clients``, ``alpha``, ``rounds``, ``workers``, ``seed``, ``name``.
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


def run_path(config: Config) -> Path:
    """Where a run goes: its name, or a new one from method, data set, seed and time."""
    method = Path(config.method_name.rpartition(":")[2] or config.method_name).stem
    name = (
        config.run.name
        or f"{method}-{config.data.dataset.replace('/', '_')}-seed{config.run.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    return Path(config.run.directory) / name


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
    loaded = LoadedRun(directory, config, experiment.method, state.server, state.round)
    loaded.save_model()
    shown = experiment.dataset.test_samples if len(experiment.dataset.test_samples) else experiment.dataset.samples
    save_contact_sheets(directory, experiment.method.assigner(state.server), shown, config.run.seed)
    _write_page(directory, config, config.report.projection)
    return loaded


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


def _reason(error: Exception) -> str:
    """Why a run failed; rounds are counted from 1, as on its page."""
    if not isinstance(error, ClientError):
        return str(error)
    return f"client {error.client_id}, phase {error.phase} of round {error.round + 1}: {error.reason}"


def _write_page(directory: RunDirectory, config: Config, projection: Projection) -> None:
    if config.report.enabled:
        with ReportFiles(directory).guarded():
            write_page(directory, projection)


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


def _visible_labels(config: Config, dataset: Dataset, partition: Partition) -> Tensor | None:
    """The labels that exist in this run; whatever is hidden here is hidden from methods and probes alike."""
    if dataset.labels is None or config.labels.fraction == 1:
        return dataset.labels
    visible = draw_labelled(dataset.labels, partition, config.labels.fraction, config.run.seed)
    return hide_labels(dataset.labels, visible)


def _scaling_notes(config: Config) -> list[str]:
    """What training.reference_clients and training.reference_participation have changed."""
    base, used = config.training, config.local_training
    notes = []
    if used.local_epochs != base.local_epochs:
        notes.append(f"training.local_epochs = {base.local_epochs} is {used.local_epochs} for this number of clients")
    if used.learning_rate != base.learning_rate:
        notes.append(f"training.learning_rate = {base.learning_rate:g} is {used.learning_rate:.4g} at this participation")
    return notes


def check_privacy(config: Config) -> None:
    """Refuses settings under which the noise would not hide a client."""
    if config.privacy.noise_multiplier == 0:
        return
    if config.aggregation.weighting != "uniform":
        raise UserError(
            f"aggregation.weighting must be 'uniform' with privacy.noise_multiplier > 0, got {config.aggregation.weighting!r}: "
            "a weight by samples would let one client move the mean further than the noise hides."
        )
    if config.aggregation.rule != "mean":
        raise UserError(f"aggregation.rule must be 'mean' with privacy.noise_multiplier > 0, got {config.aggregation.rule!r}.")


def _memory_limit(config: Config) -> int:
    return int(config.engine.state_memory * 2**30)
