"""A method by name: the options that nobody gave, chosen to fit the data and a budget of about two minutes on two cores.

The choice depends on the data, the network and the options that are given, never on a clock, so the same command gives the
same run everywhere. Recipes choose nothing: they say what they want.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unisono.config import Config, resolve
from unisono.core.client_data import as_float
from unisono.core.config import Tree, merge
from unisono.data.datasets import Dataset, load_dataset
from unisono.engines.devices import threads
from unisono.experiment import Experiment
from unisono.models.nets import build_seeded
from unisono.recipes import Layer, LayeredConfig

SOURCE = "fitted"
COHORT = 10
"""Clients per round, where a federation has more."""
LEARNING_RATE = 0.01
BUDGET = 2.4e12
"""Floating-point operations of a run: two minutes of two cores that do ten billion a second."""
OPERATIONS = 12
"""Operations per multiplication of a forward pass: two each, for two views, three times as many with the backward pass."""
MOST_EPOCHS = 10
OVERHEAD = 1.7
"""Time of a client's step by that of the encoder alone: views, heads, the optimiser, and targets of some methods."""
CENTROIDS_PER_CLUSTER = 4
"""Local centroids that a round should bring for each global cluster."""
EMA_RANGE = (0.9, 0.996)
VIEWS = {"digits": "digits", "mnist": "digits", "fashion-mini": "clothing", "fashion-mnist": "clothing"}
"""Presets of views by data set; others keep those of the method."""


def prepare(layered: LayeredConfig) -> tuple[Experiment, tuple[str, ...]]:
    """Return the experiment of a run, and sentences that the user should read before it.

    Args:
        layered: the options and their sources, as ``recipes.assemble`` gives them.
    """
    dataset = load_dataset(resolve(layered.tree).data)
    layered = fit(layered, dataset)
    experiment = Experiment.prepare(resolve(layered.tree), dataset)
    notes = [*layered.notes, *experiment.notes]
    if layered.is_method:
        notes += fitting_notes(layered)
        seconds = estimate_seconds(experiment)
        if seconds is not None:
            number = num_workers(experiment.config)
            on = "1 worker" if number == 1 else f"{number} workers"
            notes.append(f"this takes about {in_minutes(seconds)} of training on {on}")
    return experiment, tuple(notes)


def fit(layered: LayeredConfig, dataset: Dataset) -> LayeredConfig:
    """Return the options of a method by name with those that fit the data and the budget; a recipe as it is.

    Args:
        layered: the options and their sources.
        dataset: the data that they name.
    """
    if not layered.is_method:
        return layered
    config = resolve(layered.tree)
    chosen = _not_given(_split(config, dataset), layered, config)
    config = resolve(_with(layered, chosen).tree)
    for choose in (_fit_cohort, _fit_epochs, _fit_momentum):
        found = choose(Experiment.prepare(config, dataset))
        chosen = merge(chosen, _not_given(found, layered, config))
        config = resolve(_with(layered, chosen).tree)
    return _with(layered, chosen)


def fit_views(layered: LayeredConfig) -> LayeredConfig:
    """Return the options with the views that ``fit`` would choose, and nothing else of what it chooses.

    Args:
        layered: the options and their sources.
    """
    config = resolve(layered.tree)
    return _with(layered, _not_given(_views(config), layered, config)) if layered.is_method else layered


def fitting_notes(layered: LayeredConfig) -> list[str]:
    """Return a sentence about the options that ``fit`` has chosen; none where it has chosen nothing."""
    chosen = next((layer.tree for layer in layered.layers if layer.source == SOURCE), {})
    said = [f"{table}.{key} = {value}" for table, options in chosen.items() for key, value in options.items()]
    return [f"chosen to fit data and budget: {', '.join(said)}"] if said else []


def operations_per_round(experiment: Experiment) -> float:
    """Return the floating-point operations of a round's training; 0 for a method without a loss."""
    if not hasattr(experiment.method, "loss"):
        return 0.0
    return OPERATIONS * _multiplications_per_sample(experiment) * _samples_per_round(experiment)


def estimate_seconds(experiment: Experiment, clock: Callable[[], float] = time.perf_counter) -> float | None:
    """Return how long the training of a run takes on this machine, from the time of three steps; None without a loss.

    Args:
        experiment: the run.
        clock: ``time.process_time`` gives the time on a machine that does nothing else.
    """
    method, config = experiment.method, experiment.config
    if not hasattr(method, "loss") or config.engine.device not in ("auto", "cpu") or torch.cuda.is_available():
        return None
    largest = int(experiment.partition.sizes.argmax())
    rows = experiment.partition.indices[largest][: max(2, config.training.batch_size)]
    nets = build_seeded(method.build_networks, 0).train()
    views = as_float(experiment.clients.samples[torch.cat((rows, rows))])
    seconds = []
    with threads(1):
        for _ in range(3):
            start = clock()
            nets["encoder"](views).square().mean().backward()
            seconds.append(clock() - start)
    per_batch = OVERHEAD * min(seconds) / len(rows) * config.training.batch_size
    cohort = config.cohort.expected_size(experiment.partition.num_clients)
    return config.federation.rounds * phase_seconds(config, cohort, per_batch * batches_per_turn(experiment))


def batches_per_turn(experiment: Experiment) -> float:
    """Return how many whole batches a client of mean size trains on in a round; a half-filled batch counts half."""
    training, sizes = experiment.config.local_training, experiment.partition.sizes.float()
    if training.local_steps is None:
        return training.local_epochs * float(sizes.mean()) / training.batch_size
    return training.local_steps * float((sizes / training.batch_size).clamp(max=1).mean())


def phase_seconds(config: Config, num_clients: int, turn: float) -> float:
    """Return how long it takes until all clients of a phase have answered, each worker one client at a time.

    Args:
        config: gives the number of workers.
        num_clients: how many are asked.
        turn: seconds of one client.
    """
    return math.ceil(num_clients / num_workers(config)) * turn


def in_minutes(seconds: float) -> str:
    """Return ``3 min``."""
    return f"{max(1, round(seconds / 60))} min"


def num_workers(config: Config) -> int:
    """Return the processes that train."""
    return max(1, config.engine.num_workers)


def fit_method(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return the table [method] with its options that must fit clients and steps: global clusters, a target's momentum.

    Args:
        experiment: the run, with its epochs and rounds.
    """
    found = merge(_fit_cohort(experiment), _fit_momentum(experiment))
    return {"method": dict(found.get("method", {}))}


def _fit_cohort(experiment: Experiment) -> Tree:
    """Choose views, clients per round, the learning rate, and as many global clusters as the cohort's centroids can fill."""
    config, num_clients = experiment.config, experiment.partition.num_clients
    found: Tree = {"training": {"learning_rate": LEARNING_RATE}} if config.training.optimizer == "sgd" else {}
    found |= _views(config)
    if num_clients > COHORT and config.cohort.participation is None:
        found["cohort"] = {"size": COHORT}
    cohort = COHORT if "cohort" in found and config.cohort.size is None else config.cohort.expected_size(num_clients)
    options = config.method
    if {"num_global_clusters", "num_local_clusters"} <= type(options).model_fields.keys():
        most = cohort * getattr(options, "num_local_clusters") // CENTROIDS_PER_CLUSTER  # noqa: B009
        found["method"] = {"num_global_clusters": max(2, min(getattr(options, "num_global_clusters"), most))}  # noqa: B009
    return found


def _split(config: Config, dataset: Dataset) -> Tree:
    """Choose one client per owner where there are no labels to deal by, and a random split where there are no owners either."""
    given = config.partition.model_fields_set
    if dataset.labels is not None or given - {"num_clients", "min_samples", "seed"}:
        return {}
    return {"partition": {"scheme": "iid" if dataset.owners is None or "num_clients" in given else "natural"}}


def _views(config: Config) -> Tree:
    """Choose the views by the kind of data, where it is known and no other option of views is given."""
    fits = config.data.dataset in VIEWS and not config.views.model_fields_set - {"preset"}
    return {"views": {"preset": VIEWS[config.data.dataset]}} if fits else {}


def _fit_epochs(experiment: Experiment) -> Tree:
    """Choose as many local epochs as the budget allows."""
    config = experiment.config
    if config.training.local_steps is not None or not hasattr(experiment.method, "loss"):
        return {}  # a method without a loss has no epochs
    per_epoch = OPERATIONS * _multiplications_per_sample(experiment) * config.federation.rounds * _samples(experiment)
    return {"training": {"local_epochs": int(min(MOST_EPOCHS, max(1, BUDGET // max(per_epoch, 1))))}}


def _fit_momentum(experiment: Experiment) -> Tree:
    """Choose the momentum of a target network so that it can follow within the steps of the run."""
    config = experiment.config
    if "ema" not in type(config.method).model_fields:
        return {}
    training = config.local_training
    size = float(experiment.partition.sizes.float().mean())
    per_round = training.local_steps or training.local_epochs * max(1, round(size / training.batch_size))
    low, high = EMA_RANGE
    return {"method": {"ema": round(min(high, max(low, 1 - 10 / (per_round * config.federation.rounds))), 3)}}


def multiplications(encoder: nn.Module, sample: Tensor) -> int:
    """Return the multiplications of convolutions and linear layers for one sample.

    Args:
        encoder: samples to features.
        sample: floats, shape (1, *input_shape).
    """
    total = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        weight: Tensor = module.weight  # type: ignore[assignment]
        total += output[0].numel() * weight[0].numel()

    kinds = (nn.Conv1d, nn.Conv2d, nn.Linear)
    hooks = [module.register_forward_hook(count) for module in encoder.modules() if isinstance(module, kinds)]
    was_training = encoder.training
    try:
        with torch.no_grad():
            encoder.eval()(sample)
    finally:
        encoder.train(was_training)
        for hook in hooks:
            hook.remove()
    return total


def _multiplications_per_sample(experiment: Experiment) -> int:
    encoder = build_seeded(experiment.method.build_networks, 0)["encoder"]
    return multiplications(encoder, as_float(experiment.dataset.samples[:1]))


def _samples_per_round(experiment: Experiment) -> float:
    """Return the samples that the clients of a round train on, each as often as it is taken."""
    config = experiment.config
    cohort = config.cohort.expected_size(experiment.partition.num_clients)
    return cohort * batches_per_turn(experiment) * config.training.batch_size


def _samples(experiment: Experiment) -> float:
    """Return the samples that the clients of a round hold."""
    sizes = experiment.partition.sizes
    return experiment.config.cohort.expected_size(len(sizes)) * float(sizes.float().mean())


def _not_given(found: Tree, layered: LayeredConfig, config: Config) -> dict[str, Any]:
    """Return the options that neither the user nor the method's defaults set; views that fit the data outdo a default."""
    defaults: Mapping[str, Mapping[str, Any]] = config.method_class.defaults
    kept = {
        table: {
            key: value
            for key, value in options.items()
            if layered.source((table, key)) is None and (table == "views" or key not in defaults.get(table, {}))
        }
        for table, options in found.items()
    }
    return {table: options for table, options in kept.items() if options}


def _with(layered: LayeredConfig, chosen: Tree) -> LayeredConfig:
    """Return the options with the chosen ones above the method's name and below all that the user gave."""
    first, *rest = layered.layers
    return replace(layered, layers=(first, Layer(SOURCE, chosen), *rest))
