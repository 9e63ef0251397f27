"""A config's data, partition, method and clients, loaded and checked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unisono.config import Config
from unisono.core.context import Context
from unisono.core.errors import UserError, left_out
from unisono.core.method import Method, RunInfo
from unisono.core.payload import Payload
from unisono.data.datasets import Dataset, load_dataset
from unisono.data.labelled import draw_labelled, hide_labels
from unisono.data.partition import Partition, partition_dataset
from unisono.data.shift import apply_shift
from unisono.data.views import make_views
from unisono.engines.devices import resolve_devices
from unisono.engines.shards import WorkerSetup
from unisono.evaluation.config import check_probes
from unisono.evaluation.probe_data import ProbeData
from unisono.federation.client_turn import FederatedDataset
from unisono.federation.declared import check_consent
from unisono.federation.postprocess import Postprocessor
from unisono.models.backbones import AUTO, ModelConfig
from unisono.models.half_precision import has_bf16
from unisono.models.nets import build_seeded, state_view
from unisono.models.pretrained import load_pretrained
from unisono.runs.evaluation import Evaluator
from unisono.runs.trackers import check_trackers

UNREADABLE = "unreadable.txt"
"""File of a run directory: images that are left out."""


@dataclass(frozen=True)
class Experiment:
    """Everything that a config describes, loaded and checked, before anything is written.

    Args:
        config: the resolved config, with a backbone in place of "auto".
        dataset: all samples, as they come from their source.
        partition: who holds which of them.
        labels: the labels that exist, -1 where hidden; None where the data set has none.
        method: what is learnt.
        clients: the samples as their clients see them, with labels if the method may see any.
        choices: sentences about what the config left open and the data decided.
    """

    config: Config
    dataset: Dataset
    partition: Partition
    labels: Tensor | None
    method: Method
    clients: FederatedDataset
    choices: tuple[str, ...] = ()

    @staticmethod
    def prepare(config: Config, dataset: Dataset | None = None) -> Experiment:
        """Load the data and build the method; raise a UserError if the parts of the config do not fit each other.

        Args:
            config: the run's.
            dataset: its data, where they are loaded already.
        """
        dataset = load_dataset(config.data) if dataset is None else dataset
        asked, device = config, resolve_devices(config.engine.device)[0]
        on_gpu = device.type != "cpu"
        config = config.fitted(dataset.input_shape, on_gpu, has_bf16(device))
        partition = partition_dataset(config.partition, dataset, config.run.seed)
        info = RunInfo(
            dataset.input_shape,
            dataset.mean,
            dataset.std,
            dataset.num_classes,
            len(partition.indices),
            config.federation.rounds,
            config.method_sections,
        )
        method = config.method_class(config.method, info)
        if method.needs_labels and dataset.labels is None:
            raise UserError(f"method {config.method_name!r} needs labels, and data.dataset {config.data.dataset!r} has none.")
        if config.labels.classes and config.labels.classes != dataset.class_names:
            raise UserError(f"labels.classes must be {list(dataset.class_names)}, the classes of the data, or be left out.")
        check_run(config, method, len(partition.indices))
        check_consent(method.shares, config.consent)
        if config.privacy.secure_aggregation:
            raise UserError(
                "privacy.secure_aggregation hides updates from the server of a real federation: a simulation holds all data in "
                "one place anyway, so run it with 'unisono deploy run'."
            )
        method.preflight_warnings(partition.sizes.tolist())  # it may need a package that is missing
        if config.evaluation.cluster_consistency and not method.overrides("cluster_consistency"):
            raise UserError(
                f"evaluation.cluster_consistency compares local with global clusters; method {config.method_name!r} has none: "
                "set it to false."
            )
        check_probes(
            config.evaluation,
            has_labels=dataset.labels is not None,
            num_test_samples=len(dataset.test_samples),
            has_cluster_model=method.overrides("cluster_model"),
            held_out_labels=config.data.held_out_labels,
        )
        samples = apply_shift(config.shift, dataset.samples, partition, config.run.seed)
        labels = _visible_labels(config, dataset, partition)
        seen = labels if method.needs_labels else None
        clients = FederatedDataset(samples, partition.indices, seen, dataset.num_clustered_rows)
        choices = [] if config.model.backbone == asked.model.backbone else [_backbone_note(method, on_gpu)]
        if config.model.pretrained is not None and "encoder" in (networks := build_seeded(method.build_networks, 0)):
            choices.append(load_pretrained(networks["encoder"], config.model.pretrained))
        if config.training.precision != asked.training.precision:
            choices.append(
                f"training.precision = 'auto' is {config.training.precision!r} for {config.model.backbone} on this processor"
            )
        return Experiment(config, dataset, partition, labels, method, clients, tuple(choices))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that the user should read before the run."""
        return (
            *self.choices,
            *_unreadable_notes(self.dataset),
            *self.dataset.remarks,
            *_held_out_notes(self.config, self.dataset),
            *self.partition.notes,
            *_scaling_notes(self.config),
            *_engine_notes(self.config),
            *self.preflight_warnings,
        )

    @property
    def preflight_warnings(self) -> tuple[str, ...]:
        """Warnings of the method about clients of these sizes."""
        return tuple(self.method.preflight_warnings(self.partition.sizes.tolist()))

    def worker_setup(self) -> WorkerSetup:
        """Return what the engine's workers need: method, data and aggregation."""
        config = self.config
        postprocessor = Postprocessor(config.privacy, config.compression, self.method.shares)
        return WorkerSetup(self.method, self.clients, postprocessor, config.aggregation)

    def probe_data(self) -> ProbeData:
        """Return samples and labels that probes use: training samples as their clients see them, test samples as they are.

        The unlabelled part of a data set is not among them. Where samples are held out for probes, these follow the clients'
        samples, as they are, and they alone have labels.
        """
        data, number = self.dataset, self.dataset.num_clustered
        if data.probe_samples is not None and data.probe_labels is not None:
            samples = torch.cat((self.clients.samples, data.probe_samples))
            known = torch.cat((torch.full((len(self.clients.samples),), -1), data.probe_labels))
            return ProbeData(samples, known, data.test_samples, data.test_labels)
        labels = data.labels if self.config.labels.probe == "all" else self.labels
        visible, true = (None if values is None else values[:number] for values in (labels, data.labels))
        return ProbeData(
            self.clients.samples[:number],
            visible,
            data.test_samples,
            data.test_labels,
            true,
            data.finetune_samples,
            data.finetune_labels,
            data.owners[:number] if data.owners is not None and self.config.partition.scheme == "natural" else None,
        )

    def initial_server(self) -> Payload:
        """Return the server's payload before the first round: untrained weights."""
        return self.method.init_server(Context(self.config.run.seed))

    def evaluator(self) -> Evaluator:
        """Return the config's probes on this data, for any state of the server."""
        config = self.config
        views = make_views(config.views, self.dataset.input_shape, config.model.input_size)
        rows = self.partition.indices
        if self.dataset.num_unlabelled:
            rows = [own[own < self.dataset.num_clustered] for own in rows]
        return Evaluator(config.evaluation, self.method, self.probe_data(), config.run.seed, views.pair, rows)


def run_path(config: Config) -> Path:
    """Return the run directory's path: its name, or a new one from method, data set, seed and time."""
    if config.run.name is not None:
        return Path(config.run.directory) / config.run.name
    method = Path(config.method_name.rpartition(":")[2] or config.method_name).stem
    now = time.time()
    stamp = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{int(now * 1000) % 1000:03d}"
    return Path(config.run.directory) / f"{method}-{config.data.dataset.replace('/', '_')}-seed{config.run.seed}-{stamp}"


def check_run(config: Config, method: Method, num_clients: int) -> None:
    """Refuse a config whose parts do not fit each other, before anything is written; for simulations and federations alike.

    Args:
        config: the run's.
        method: built for the data of the run.
        num_clients: size of the federation.
    """
    # A backbone that does not fit the data, or an impossible graph, is better noticed now than in a half-made run.
    nets = build_seeded(method.build_networks, 0)
    method.check_networks(nets)
    method.client_graph(config.run.seed)
    check_privacy(config)
    if config.privacy.noise_multiplier > 0 and any(name.endswith("running_var") for name in state_view(nets)):
        raise UserError(
            "privacy.noise_multiplier > 0 needs networks without BatchNorm, whose variances the noise would make negative: set "
            'model.norm = "group".'
        )
    check_trackers(config.track)
    config.aggregation.check(config.cohort.expected_size(num_clients))


def check_privacy(config: Config) -> None:
    """Refuse options under which the noise would not hide a client."""
    if config.privacy.noise_multiplier == 0:
        return
    if config.aggregation.weighting != "uniform":
        raise UserError(
            f"aggregation.weighting must be 'uniform' with privacy.noise_multiplier > 0, got {config.aggregation.weighting!r}: "
            "a weight by samples would let one client move the mean further than the noise hides."
        )
    if config.aggregation.rule != "mean":
        raise UserError(f"aggregation.rule must be 'mean' with privacy.noise_multiplier > 0, got {config.aggregation.rule!r}.")


def _unreadable_notes(dataset: Dataset) -> tuple[str, ...]:
    number = len(dataset.unreadable)
    return (f"{left_out(number, 'image')}; {UNREADABLE} of the run lists them.",) if number else ()


def _held_out_notes(config: Config, dataset: Dataset) -> tuple[str, ...]:
    """Return a sentence about samples of the user's own that are not trained on."""
    number = len(dataset.test_samples)
    if config.data.path is None or not dataset.held_out or not number:
        return ()
    return (
        f"{number:,} of {number + len(dataset.samples):,} samples are held out for tests (data.test_fraction = "
        f"{config.data.test_fraction:g}; 0 holds none out)",
    )


def _visible_labels(config: Config, dataset: Dataset, partition: Partition) -> Tensor | None:
    """Return the labels that exist in this run; whatever is hidden here is hidden from methods and probes alike."""
    if dataset.labels is None or config.labels.fraction == 1:
        return dataset.labels
    visible = draw_labelled(dataset.labels, partition, config.labels.fraction, config.run.seed)
    return hide_labels(dataset.labels, visible)


def _backbone_note(method: Method, on_gpu: bool) -> str:
    """Return what ``model.backbone = "auto"`` has become, and why."""
    shape, model = method.info.input_shape, method.info.section(ModelConfig)
    kind = f"series of {shape[0]} channels" if len(shape) == 2 else f"images of {shape[1]}x{shape[2]}"
    return f"model.backbone = {AUTO!r} is {model.backbone!r} for {kind} on a {'GPU' if on_gpu else 'CPU'}"


def _scaling_notes(config: Config) -> list[str]:
    """Return notes about what training.epochs_tuned_for_clients and training.lr_tuned_for_participation have changed."""
    base, used = config.training, config.local_training
    notes = []
    if used.local_epochs != base.local_epochs:
        notes.append(f"training.local_epochs = {base.local_epochs} is {used.local_epochs} for this number of clients")
    if used.learning_rate != base.learning_rate:
        notes.append(f"training.learning_rate = {base.learning_rate:g} is {used.learning_rate:.4g} at this participation")
    return notes


def _engine_notes(config: Config) -> list[str]:
    """Return what users of the engine should know."""
    if config.engine.kind == "embedded":
        return []
    from unisono.engines.flower.environment import SIMULATION_NOTE

    return [SIMULATION_NOTE]
