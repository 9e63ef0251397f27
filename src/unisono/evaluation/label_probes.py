"""Probes that learn from labels: the one that a name means, with the options of the table ``[evaluation]``."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unisono.core.errors import UserError
from unisono.evaluation.config import FRACTIONS, EvaluationConfig, ProbeName
from unisono.evaluation.finetune import FineTuning, finetune
from unisono.evaluation.knn import knn_probe
from unisono.evaluation.linear import LinearClassifier, fit_linear_sgd, linear_probe
from unisono.evaluation.published import Augment, fit_linear_adam, linear_probe_orchestra

LABELS_PER_CLASS, NUM_DRAWS = 10, 5
"""The probe labels-10: what a user of an encoder saves."""
EASYFL_BATCH, EASYFL_RATE = 2048, 3e-3
"""The probe linear-easyfl."""


@dataclass(frozen=True)
class LabelledSamples:
    """Labels, and samples and features where a probe asks for them.

    Args:
        samples: called for samples as ``embed`` takes them.
        labels: shape (num_samples,).
        features: called for features of shape (num_samples, feature_dim).
    """

    samples: Callable[[], Tensor]
    labels: Tensor
    features: Callable[[], Tensor]


@dataclass(frozen=True)
class LabelProbes:
    """The probes that learn from labels, of one encoder.

    Args:
        config: the table.
        encoder: samples to features.
        encode: the same in eval mode, with a check that features are finite.
        train: to learn from.
        test: to be tested on.
        fine_tuning: samples and labels to fine-tune with, and how many times more there are in the data set's training part;
            None takes them from ``train``.
        crop_flip: random crops and flips of float samples; None where they cannot be made.
        device: where networks run.
    """

    config: EvaluationConfig
    encoder: nn.Module
    encode: Callable[[Tensor], Tensor]
    train: LabelledSamples
    test: LabelledSamples
    fine_tuning: tuple[Tensor, Tensor, float] | None
    crop_flip: Augment | None
    device: torch.device | str

    def accuracy(
        self, name: ProbeName, generator: torch.Generator, layers: MutableMapping[str, LinearClassifier] | None
    ) -> float:
        """Return the test accuracy of a probe.

        Args:
            name: which.
            generator: draws all that is random.
            layers: with ``warm_start``, the linear layers of the evaluation before; this one's take their places.
        """
        if name in FRACTIONS:
            return self._fine_tuned(name, generator)
        if name == "linear-orchestra":
            return self._linear_orchestra(name, generator)
        config = self.config
        splits = self.train.features(), self.train.labels, self.test.features(), self.test.labels
        if name == "linear":
            return linear_probe(*splits, l2=config.linear_l2)
        if name == "labels-10":
            return _few_labels(*splits, config.linear_l2, generator)
        if name == "knn":
            return knn_probe(*splits, k=config.knn_neighbors, temperature=config.knn_temperature)
        return self._trained_layer(name, generator, layers).accuracy(*splits[2:])

    def _trained_layer(
        self, name: ProbeName, generator: torch.Generator, layers: MutableMapping[str, LinearClassifier] | None
    ) -> LinearClassifier:
        """Return the layer of a probe that takes so many steps on frozen features."""
        config, x, y = self.config, self.train.features(), self.train.labels
        if name == "linear-easyfl":
            steps = config.easyfl_linear_epochs * -(-len(x) // EASYFL_BATCH)
            return fit_linear_adam(x, y, generator, steps, EASYFL_BATCH, EASYFL_RATE)
        if name == "linear-adam":
            return fit_linear_adam(x, y, generator, config.sgd_steps, config.sgd_batch_size, config.adam_learning_rate)
        kept = layers if layers is not None and config.warm_start else {}
        rate, start = config.sgd_learning_rate, kept.get(name)
        kept[name] = fit_linear_sgd(x, y, generator, config.sgd_steps, config.sgd_batch_size, rate, start)
        return kept[name]

    def _linear_orchestra(self, name: ProbeName, generator: torch.Generator) -> float:
        return linear_probe_orchestra(
            self.encode,
            self.train.samples(),
            self.train.labels,
            self.test.features(),
            self.test.labels,
            self._crop_flip(name),
            generator,
            self.config.orchestra_epochs,
            learning_rate=self.config.orchestra_learning_rate,
        )

    def _fine_tuned(self, name: ProbeName, generator: torch.Generator) -> float:
        samples, labels, times = self.fine_tuning or (self.train.samples(), self.train.labels, 1.0)
        protocol = _fine_tuning(name, self.config)
        return finetune(
            self.encoder,
            self.encode(samples[:1]).shape[1],
            samples,
            labels,
            self.test.samples(),
            self.test.labels,
            min(1.0, FRACTIONS[name] * times),
            generator,
            protocol,
            self.device,
            self._crop_flip(name) if protocol.augmented else None,
        )

    def _crop_flip(self, name: ProbeName) -> Augment:
        if self.crop_flip is None:
            raise UserError(f"evaluation.probes: {name!r} crops and flips samples, which cannot be done here: leave it out.")
        return self.crop_flip


def class_balanced(labels: Tensor, max_samples: int | None, generator: torch.Generator) -> Tensor:
    """Return sorted positions of at most max_samples samples, as near to the same number of each class as the classes allow.

    Args:
        labels: shape (num_samples,).
        max_samples: None for all.
        generator: draws them.
    """
    if max_samples is None or len(labels) <= max_samples:
        return torch.arange(len(labels))
    order = torch.randperm(len(labels), generator=generator)
    # The first of each class, then the second of each, and so on.
    turns = torch.empty_like(order)
    for label in labels.unique():
        members = (labels[order] == label).nonzero().flatten()
        turns[members] = torch.arange(len(members))
    return order[turns.argsort(stable=True)[:max_samples]].sort().values


def _fine_tuning(name: ProbeName, config: EvaluationConfig) -> FineTuning:
    """Return how a probe fine-tunes: by our protocol, Orchestra's or EasyFL's."""
    kind, _, code = name.rpartition("-")[0].partition("-")
    if code == "orchestra":
        rate = config.orchestra_finetune_rate if kind == "finetune" else config.orchestra_learning_rate
        return FineTuning(config.orchestra_epochs, rate, 256, "sgd", head_only=kind == "head", augmented=True)
    if code == "easyfl":
        return FineTuning(config.easyfl_head_epochs, 1e-3, 128, "adam", head_only=True, hidden_dim=4096)
    return FineTuning(config.finetune_epochs, config.finetune_learning_rate, config.finetune_batch_size)


def _few_labels(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, l2: float, generator: torch.Generator
) -> float:
    """Return the mean test accuracy of logistic regression on ten labels per class, over five draws of the labels."""
    num_labels = LABELS_PER_CLASS * len(train_y.unique())
    found = []
    for _ in range(NUM_DRAWS):
        rows = class_balanced(train_y, num_labels, generator)
        found.append(linear_probe(train_x[rows], train_y[rows], test_x, test_y, l2=l2))
    return sum(found) / len(found)
