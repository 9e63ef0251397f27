"""A config put together and run: data, method, engine, observers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from unisono.config import Config, build_tree, resolve
from unisono.core.context import Context
from unisono.core.errors import UserError
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
from unisono.runs.checkpoint import DamagedError
from unisono.runs.contact_sheet import save_contact_sheets
from unisono.runs.directory import RunDirectory
from unisono.runs.exchange_log import ExchangeLog
from unisono.runs.observers import Checkpointing, Failures, Logs, PrivacyLedger
from unisono.runs.probing import Probing, WholeProbe


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
        _check_privacy(config)
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


def start(experiment: Experiment, path: Path, *, observers: Sequence[Observer] = ()) -> LoadedRun:
    """Runs an experiment in a new run directory.

    Args:
        experiment: what ``Experiment.prepare`` made.
        path: the run directory; it must not hold anything yet.
        observers: look on.
    """
    config = experiment.config
    directory = RunDirectory.create(path, config.as_tree())
    directory.lock()
    directory.save_setting(experiment.method.setting)
    return _execute(experiment, directory, None, ClientStore(_memory_limit(config)), observers)


def resume(path: str | Path, *, observers: Sequence[Observer] = (), on_note: Any = lambda note: None) -> LoadedRun:
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
        return _execute(experiment, directory, checkpoint.state, store, observers)
    if checkpoints.rounds():
        directory.unlock()
        raise UserError(
            f"All checkpoints of {path} are damaged, so it cannot be continued: start anew with "
            f"'unisono run {path}/config.toml --name NEW'."
        )
    directory.cut_logs({})
    on_note("There is no checkpoint yet: starting from the beginning.")
    return _execute(experiment, directory, None, ClientStore(_memory_limit(config)), observers)


def run_path(config: Config) -> Path:
    """Where a run goes: its name, or a new one from method, data set, seed and time."""
    method = Path(config.method_name.rpartition(":")[2] or config.method_name).stem
    name = (
        config.run.name
        or f"{method}-{config.data.dataset.replace('/', '_')}-seed{config.run.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    return Path(config.run.directory) / name


def _execute(
    experiment: Experiment, directory: RunDirectory, state: State | None, store: ClientStore, observers: Sequence[Observer]
) -> LoadedRun:
    """Runs to the end in a directory that is locked already, and unlocks it."""
    config = experiment.config
    try:
        with EmbeddedEngine(experiment.workshop(), config.engine) as engine:
            federation = Federation(experiment.method, engine, store, config.federation_sections, config.run.seed)
            state = federation.start() if state is None else state
            engine.open(state.server)
            state = federation.run(state, _observers(experiment, directory, store, observers))
        directory.write_json("status.json", {"status": "finished", "round": state.round})
    finally:
        store.close()
        directory.unlock()
    loaded = LoadedRun(directory, config, experiment.method, state.server, state.round)
    loaded.save_model()
    shown = experiment.dataset.test_samples if len(experiment.dataset.test_samples) else experiment.dataset.samples
    save_contact_sheets(directory, experiment.method.assigner(state.server), shown, config.run.seed)
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
    if config.privacy.noise_multiplier > 0:
        accountant = _accountant(config, len(experiment.clients))
        found.append(PrivacyLedger(directory, accountant, config.privacy.delta, experiment.method.shares))
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


def _check_privacy(config: Config) -> None:
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
