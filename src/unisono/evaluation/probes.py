"""Probes of a run: the samples they use, and the numbers they give.

Every probe looks at all test samples and at the state it is given, never at the best of several. Subsets and views are drawn
from the run's seed alone, so that two rounds, or two runs of one seed, differ by their encoders and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from unisono.core.client_data import as_float
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.evaluation.alignment import align, stability, uniformity
from unisono.evaluation.clusters import ari, cluster_balance, clustering_accuracy, nmi, silhouette
from unisono.evaluation.config import NEED_LABELS, EvaluationConfig, ProbeName, check_probes, chosen_probes
from unisono.evaluation.features import assign, embed
from unisono.evaluation.finetune import finetune
from unisono.evaluation.kmeans import kmeans_clusters
from unisono.evaluation.knn import knn_probe
from unisono.evaluation.linear import LinearClassifier, fit_linear_sgd, linear_probe

Views = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]

LABELS_PER_CLASS, NUM_DRAWS = 10, 5
"""The probe labels-10: what a user of an encoder saves."""
FRACTIONS: dict[ProbeName, float] = {"finetune-1": 0.01, "finetune-10": 0.1}


@dataclass(frozen=True)
class ProbeData:
    """Samples and labels that probes use.

    Args:
        train_samples: the federation's samples, as for ``embed``.
        train_labels: shape (num_train,), -1 where hidden; None where there are none.
        test_samples: held out, as for ``embed``; may be empty.
        test_labels: shape (num_test,); None where there are none.
    """

    train_samples: Tensor
    train_labels: Tensor | None
    test_samples: Tensor
    test_labels: Tensor | None

    @property
    def has_labels(self) -> bool:
        """True if both splits have visible labels, which probes with labels need."""
        return self.train_labels is not None and self.test_labels is not None and bool((self.train_labels >= 0).any())


def run_probes(
    config: EvaluationConfig,
    encoder: nn.Module,
    cluster_model: nn.Module | None,
    data: ProbeData,
    ctx: Context,
    views: Views | None,
    device: torch.device | str = "cpu",
    client_indices: Sequence[Tensor] | None = None,
    previous_cluster_model: nn.Module | None = None,
    layers: MutableMapping[str, LinearClassifier] | None = None,
    projector: nn.Module | None = None,
) -> dict[str, float]:
    """Return the probes' numbers by name; accuracies are in [0, 1].

    ``linear``, ``linear-sgd``, ``knn``, ``labels-10``, ``finetune-1``, ``finetune-10``: test accuracy. ``clusters``:
    ``cluster-balance`` and ``silhouette``, with test labels also ``cluster-accuracy``, ``nmi`` and ``ari``, all on the test
    samples (on the training samples where there is no test split), and ``stability`` if the clusters of the round before are
    given; where a method assigns none yet, nothing. ``kmeans``: ``kmeans-balance``, with test labels also ``kmeans-accuracy``,
    ``kmeans-nmi`` and ``kmeans-ari``, of k-means on the training samples' features. ``alignment``: ``align``,
    ``uniformity`` and ``score`` of the projector's outputs (of the encoder's features without a projector), means over
    clients; as in Eq. 5 of the Orchestra paper, Align compares each sample with an augmentation of it, and Unif looks at plain
    samples. With a projector also ``encoder-score``, the same of the encoder's features.

    Args:
        config: the table.
        encoder: samples to features.
        cluster_model: samples to cluster scores, shape (batch, num_clusters); None where the method does not cluster.
        data: samples and labels.
        ctx: its seed decides about every draw.
        views: two augmented views of float samples.
        device: where networks run.
        client_indices: each client's rows of the training samples; None takes all samples as one client's.
        previous_cluster_model: that of the round before.
        layers: with ``warm_start``, the linear layers of the evaluation before by probe; this one's take their places.
        projector: features to the space of the loss; None where the method has none.
    """
    train_labels, test_labels = data.train_labels, data.test_labels
    check_probes(
        config,
        data.has_labels,
        num_train_samples=len(data.train_samples),
        num_test_samples=len(data.test_samples),
        has_views=views is not None,
    )
    probes = chosen_probes(config, data.has_labels, cluster_model is not None)
    seeded = Context(ctx.seed)
    client_rows = _client_rows(config, data, client_indices, seeded) if "alignment" in probes else []
    label_rows = torch.empty(0, dtype=torch.long)
    if train_labels is not None and set(probes) & set(NEED_LABELS):
        visible = (train_labels >= 0).nonzero().flatten()
        label_rows = visible[class_balanced(train_labels[visible], config.max_train_samples, seeded.rng("probe-train"))]
    kmeans_rows = _kmeans_rows(config, data, seeded) if "kmeans" in probes else torch.empty(0, dtype=torch.long)
    rows = torch.cat([label_rows, kmeans_rows, *client_rows]).unique()
    features = _Features(encoder, data, rows, device, config.batch_size)

    numbers: dict[str, float] = {}
    if train_labels is not None and test_labels is not None:
        for name in (name for name in probes if name in NEED_LABELS):
            labels = train_labels[label_rows]
            numbers[name] = _with_labels(name, config, features, label_rows, labels, test_labels, seeded, layers)
    if "clusters" in probes and cluster_model is not None:
        numbers |= _clusters(config, features, cluster_model, previous_cluster_model, test_labels, seeded)
    if "kmeans" in probes:
        numbers |= _kmeans(config, features, kmeans_rows, test_labels, seeded)
    if "alignment" in probes and views is not None:
        numbers |= _alignment(config, features, client_rows, views, seeded, projector)
    return numbers


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


@dataclass(frozen=True)
class _Features:
    """Features of the training rows that probes ask for, and of the test samples, embedded at the first use."""

    encoder: nn.Module
    data: ProbeData
    rows: Tensor
    device: torch.device | str
    batch_size: int

    def of(self, samples: Tensor) -> Tensor:
        features = embed(self.encoder, samples, self.device, self.batch_size)
        return _finite(features, "encoder's features")

    def projected(self, projector: nn.Module, features: Tensor) -> Tensor:
        return _finite(embed(projector, features, self.device, self.batch_size), "projector's outputs")

    @cached_property
    def test(self) -> Tensor:
        return self.of(self.data.test_samples)

    @cached_property
    def _train(self) -> Tensor:
        samples = self.data.train_samples
        return self.of(samples if len(self.rows) == len(samples) else samples[self.rows])

    def train(self, rows: Tensor) -> Tensor:
        return self._train[torch.searchsorted(self.rows, rows)]


def _finite(outputs: Tensor, what: str) -> Tensor:
    if not outputs.isfinite().all():
        raise UserError(f"The {what} are not finite, so training has diverged: lower the learning rate.")
    return outputs


def _with_labels(
    name: ProbeName,
    config: EvaluationConfig,
    features: _Features,
    rows: Tensor,
    labels: Tensor,
    test_labels: Tensor,
    ctx: Context,
    layers: MutableMapping[str, LinearClassifier] | None,
) -> float:
    """Return the test accuracy of one probe that learns from labels."""
    data, generator = features.data, ctx.rng(f"probe-{name}")
    if name in FRACTIONS:
        return finetune(
            features.encoder,
            features.of(data.train_samples[rows[:1]]).shape[1],
            data.train_samples[rows],
            labels,
            data.test_samples,
            test_labels,
            FRACTIONS[name],
            generator,
            config.finetune_epochs,
            config.finetune_learning_rate,
            config.finetune_batch_size,
            features.device,
        )
    splits = (features.train(rows), labels, features.test, test_labels)
    if name == "linear":
        return linear_probe(*splits, l2=config.linear_l2)
    if name == "labels-10":
        return _few_labels(*splits, config.linear_l2, generator)
    if name == "linear-sgd":
        kept = layers if layers is not None and config.warm_start else {}
        kept[name] = fit_linear_sgd(
            features.train(rows),
            labels,
            generator,
            config.sgd_steps,
            config.sgd_batch_size,
            config.sgd_learning_rate,
            start=kept.get(name),
        )
        return kept[name].accuracy(features.test, test_labels)
    return knn_probe(*splits, k=config.knn_neighbors, temperature=config.knn_temperature)


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


def _clusters(
    config: EvaluationConfig,
    features: _Features,
    cluster_model: nn.Module,
    previous_cluster_model: nn.Module | None,
    test_labels: Tensor | None,
    ctx: Context,
) -> dict[str, float]:
    """Return all scores of the clusters that the available labels allow."""
    has_test = len(features.data.test_samples) > 0
    samples = features.data.test_samples if has_test else features.data.train_samples
    clusters, num_clusters = assign(cluster_model, samples, features.device, config.batch_size)
    numbers = {
        "cluster-balance": cluster_balance(clusters, num_clusters),
        "silhouette": silhouette(features.test if has_test else features.of(samples), clusters, ctx.rng("probe-silhouette")),
    }
    if previous_cluster_model is not None:
        before, _ = assign(previous_cluster_model, samples, features.device, config.batch_size)
        numbers["stability"] = stability(before, clusters)
    if has_test and test_labels is not None:
        numbers["cluster-accuracy"] = clustering_accuracy(test_labels, clusters)
        numbers["nmi"] = nmi(test_labels, clusters)
        numbers["ari"] = ari(test_labels, clusters)
    return numbers


def _kmeans(
    config: EvaluationConfig, features: _Features, rows: Tensor, test_labels: Tensor | None, ctx: Context
) -> dict[str, float]:
    """Return the same of k-means on the features of the training samples."""
    has_test = len(features.data.test_samples) > 0
    labels = test_labels if has_test else None
    num_clusters = config.kmeans_clusters or len(_known(features.data).unique())
    looked_at = features.test if has_test else features.train(rows)
    clusters = kmeans_clusters(features.train(rows), looked_at, num_clusters, ctx.rng("probe-kmeans"))
    numbers = {"kmeans-balance": cluster_balance(clusters, num_clusters)}
    if labels is not None:
        numbers["kmeans-accuracy"] = clustering_accuracy(labels, clusters)
        numbers["kmeans-nmi"] = nmi(labels, clusters)
        numbers["kmeans-ari"] = ari(labels, clusters)
    return numbers


def _known(data: ProbeData) -> Tensor:
    """Return all labels that may be seen."""
    labels = torch.cat([part for part in (data.train_labels, data.test_labels) if part is not None])
    return labels[labels >= 0]


def _kmeans_rows(config: EvaluationConfig, data: ProbeData, ctx: Context) -> Tensor:
    """Return sorted training rows to cluster, at most ``max_train_samples``, drawn without a look at labels."""
    order = torch.randperm(len(data.train_samples), generator=ctx.rng("probe-kmeans-rows"))
    return order[: config.max_train_samples].sort().values


def _alignment(
    config: EvaluationConfig,
    features: _Features,
    client_rows: Sequence[Tensor],
    views: Views,
    ctx: Context,
    projector: nn.Module | None,
) -> dict[str, float]:
    """Return Align, Unif and their weighted sum, means over clients."""
    generator = ctx.rng("probe-views")
    of_projector, of_encoder = [], []
    for rows in client_rows:
        view, _ = views(as_float(features.data.train_samples[rows]), generator)
        pair = features.train(rows), features.of(view)
        of_encoder.append(_align_and_uniformity(pair, config))
        if projector is not None:
            pair = features.projected(projector, pair[0]), features.projected(projector, pair[1])
            of_projector.append(_align_and_uniformity(pair, config))
    numbers = _mean_score(of_projector or of_encoder, config)
    return {**numbers, "encoder-score": _mean_score(of_encoder, config)["score"]} if of_projector else numbers


def _align_and_uniformity(pair: tuple[Tensor, Tensor], config: EvaluationConfig) -> tuple[float, float]:
    """Return both for one client's plain samples and a view of each."""
    return align(*pair), uniformity(pair[0], config.uniformity_tau)


def _mean_score(clients: Sequence[tuple[float, float]], config: EvaluationConfig) -> dict[str, float]:
    mean_align, mean_uniformity = (sum(values) / len(clients) for values in zip(*clients, strict=True))
    score = mean_align + config.uniformity_weight * mean_uniformity
    return {"align": mean_align, "uniformity": mean_uniformity, "score": score}


def _client_rows(
    config: EvaluationConfig, data: ProbeData, client_indices: Sequence[Tensor] | None, ctx: Context
) -> list[Tensor]:
    """Return the training rows of each client that has any, at most ``max_client_samples`` of them."""
    clients = [torch.arange(len(data.train_samples))] if client_indices is None else client_indices
    generator = ctx.rng("probe-clients")
    return [
        rows[torch.randperm(len(rows), generator=generator)[: config.max_client_samples]].sort().values
        for rows in clients
        if len(rows) > 0
    ]
