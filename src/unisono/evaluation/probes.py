"""Probes of a run: the samples they use, and the numbers they give.

Every probe looks at the state it is given, never at the best of several. Subsets of large data sets and views
are drawn from the run's seed alone, so that two rounds, or two runs of one seed, differ by their encoders and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.threads import at_most
from unisono.evaluation.alignment import align, stability, uniformity
from unisono.evaluation.clusters import ari, cluster_balance, clustering_accuracy, nmi, silhouette
from unisono.evaluation.config import NEED_LABELS, EvaluationConfig, check_probes, chosen_probes
from unisono.evaluation.features import assign, embed
from unisono.evaluation.kmeans import kmeans_clusters
from unisono.evaluation.label_probes import LabelledSamples, LabelProbes, class_balanced
from unisono.evaluation.linear import LinearClassifier
from unisono.evaluation.probe_data import Judged, ProbeData, Views, fitting_cap, view_outputs
from unisono.evaluation.published import Augment
from unisono.evaluation.unlabelled import CLUSTERS, FEWEST_SAMPLES, MOST_SAMPLES, SeenSamples, unlabelled_numbers

FEWEST_OF_A_CLIENT = 16
MOST_THREADS = 4
"""Threads of a probe; those that learn in small steps take one."""


@at_most(MOST_THREADS)
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
    previous_encoder: nn.Module | None = None,
    layers: MutableMapping[str, LinearClassifier] | None = None,
    crop_flip: Augment | None = None,
    projector: nn.Module | None = None,
) -> dict[str, float]:
    """Return the probes' numbers by name; accuracies are in [0, 1].

    ``linear`` and all others that learn from labels (``config.NEED_LABELS``): test accuracy. ``clusters``:
    ``cluster-balance`` and ``silhouette``, with labels also ``cluster-accuracy``, ``nmi`` and ``ari``, all on the test
    samples (on the training samples where nothing is held out), and ``stability`` if the clusters of the round before are
    given; where a method assigns none yet, nothing. ``kmeans``: ``kmeans-balance``, with labels also ``kmeans-accuracy``,
    ``kmeans-nmi`` and ``kmeans-ari``, of k-means on the training samples' features. ``alignment``: ``align``,
    ``uniformity`` and ``score`` of the projector's outputs (of the encoder's features without a projector), means over
    clients; as in Eq. 5 of the Orchestra paper, Align compares each sample with an augmentation of it, and Unif looks at plain
    samples. With a projector also ``encoder-score``, the same of the encoder's features. ``unlabelled``: see its module.

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
        previous_encoder: that of the round before.
        layers: with ``warm_start``, the linear layers of the evaluation before by probe; this one's take their places.
        crop_flip: random crops and flips of float samples, for probes of Orchestra's code.
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
    probes = chosen_probes(config, data.has_labels, cluster_model is not None, data.held_out)
    seeded = Context(ctx.seed)
    client_rows = _client_rows(config, data, client_indices, seeded) if "alignment" in probes else []
    label_rows = torch.empty(0, dtype=torch.long)
    if train_labels is not None and set(probes) & set(NEED_LABELS):
        visible = (train_labels >= 0).nonzero().flatten()
        label_rows = visible[class_balanced(train_labels[visible], config.max_train_samples or None, seeded.rng("probe-train"))]
    kmeans_rows = _kmeans_rows(config, data, seeded) if "kmeans" in probes else torch.empty(0, dtype=torch.long)
    rows = torch.cat([label_rows, kmeans_rows, *client_rows]).unique()
    judged = data.judged.some(config.max_test_samples, seeded.rng("probe-judged"))
    features = _Features(encoder, data, judged, rows, device, config.batch_size)

    numbers: dict[str, float] = {}
    if train_labels is not None and test_labels is not None:
        known = train_labels[label_rows]
        learnt_from = LabelledSamples(lambda: data.train_samples[label_rows], known, lambda: features.train(label_rows))
        labels = test_labels if judged.labels is None else judged.labels
        tested_on = LabelledSamples(judged.read, labels, lambda: features.of_judged)
        probe = LabelProbes(config, encoder, features.of, learnt_from, tested_on, data.fine_tuning, crop_flip, device)
        for name in (name for name in probes if name in NEED_LABELS):
            numbers[name] = probe.accuracy(name, seeded.rng(f"probe-{name}"), layers)
    if "clusters" in probes and cluster_model is not None:
        numbers |= _clusters(config, features, cluster_model, previous_cluster_model, seeded)
    if "kmeans" in probes:
        numbers |= _kmeans(config, features, kmeans_rows, seeded)
    if "alignment" in probes and views is not None:
        numbers |= _alignment(config, features, client_rows, views, seeded, projector)
    if "unlabelled" in probes and views is not None:
        found = _unlabelled(config, features, views, cluster_model, previous_encoder, seeded)
        numbers |= {name: value for name, value in found.items() if name not in numbers}
    return numbers


@dataclass(frozen=True)
class _Features:
    """Features of the training rows that probes ask for, and of the judged samples, embedded at the first use."""

    encoder: nn.Module
    data: ProbeData
    judged: Judged
    rows: Tensor
    device: torch.device | str
    batch_size: int

    def of(self, samples: Tensor, rows: Tensor | None = None) -> Tensor:
        features = embed(self.encoder, samples, self.device, self.batch_size, rows=rows)
        return _finite(features, "encoder's features")

    def projected(self, projector: nn.Module, features: Tensor) -> Tensor:
        return _finite(embed(projector, features, self.device, self.batch_size), "projector's outputs")

    @cached_property
    def of_judged(self) -> Tensor:
        samples, rows, _ = self.judged
        same = samples is self.data.train_samples and rows is None and len(self.rows) == len(samples)
        return self._train if same else self.of(samples, rows)

    @cached_property
    def _train(self) -> Tensor:
        samples = self.data.train_samples
        return self.of(samples, None if len(self.rows) == len(samples) else self.rows)

    def train(self, rows: Tensor) -> Tensor:
        return self._train[torch.searchsorted(self.rows, rows)]


def _finite(outputs: Tensor, what: str) -> Tensor:
    if not outputs.isfinite().all():
        raise UserError(f"The {what} are not finite, so training has diverged: lower the learning rate.")
    return outputs


def _clusters(
    config: EvaluationConfig,
    features: _Features,
    cluster_model: nn.Module,
    previous_cluster_model: nn.Module | None,
    ctx: Context,
) -> dict[str, float]:
    """Return all scores of the clusters that the available labels allow."""
    samples, rows, labels = features.judged
    clusters, num_clusters = assign(cluster_model, samples, features.device, config.batch_size, rows)
    numbers = {
        "cluster-balance": cluster_balance(clusters, num_clusters),
        "silhouette": silhouette(features.of_judged, clusters, ctx.rng("probe-silhouette")),
    }
    if previous_cluster_model is not None:
        before, _ = assign(previous_cluster_model, samples, features.device, config.batch_size, rows)
        numbers["stability"] = stability(before, clusters)
    if labels is not None:
        numbers["cluster-accuracy"] = clustering_accuracy(labels, clusters)
        numbers["nmi"] = nmi(labels, clusters)
        numbers["ari"] = ari(labels, clusters)
    return numbers


def _kmeans(config: EvaluationConfig, features: _Features, rows: Tensor, ctx: Context) -> dict[str, float]:
    """Return the same of k-means on the features of the training samples."""
    labels = features.judged.labels
    num_clusters = config.kmeans_clusters or len(_known(features.data).unique())
    clusters = kmeans_clusters(features.train(rows), features.of_judged, num_clusters, ctx.rng("probe-kmeans"))
    numbers = {"kmeans-balance": cluster_balance(clusters, num_clusters)}
    if labels is not None:
        numbers["kmeans-accuracy"] = clustering_accuracy(labels, clusters)
        numbers["kmeans-nmi"] = nmi(labels, clusters)
        numbers["kmeans-ari"] = ari(labels, clusters)
    return numbers


def _unlabelled(
    config: EvaluationConfig,
    features: _Features,
    views: Views,
    cluster_model: nn.Module | None,
    previous_encoder: nn.Module | None,
    ctx: Context,
) -> dict[str, float]:
    """Return the numbers of the probe ``unlabelled`` on training samples, the same number from every site."""
    data = features.data
    of_one = torch.zeros(len(data.train_samples), dtype=torch.long)
    samples = data.train_samples
    most = fitting_cap(samples, MOST_SAMPLES, FEWEST_SAMPLES)
    rows = class_balanced(of_one if data.sites is None else data.sites, most, ctx.rng("probe-unlabelled"))
    networks: list[Callable[[Tensor], Tensor]] = [features.of]
    if cluster_model is not None:
        networks.append(lambda view: assign(cluster_model, view, features.device, config.batch_size)[0])
    of_views, *of_clusters = view_outputs(networks, views, samples, rows, ctx.rng("probe-unlabelled-views"))
    known = 0 if data.train_labels is None else len(_known(data).unique())
    seen = SeenSamples(
        features.of(samples, rows),
        *of_views,
        None if previous_encoder is None else embed(previous_encoder, samples, features.device, config.batch_size, rows=rows),
        of_clusters[0] if of_clusters else None,
        config.kmeans_clusters or max(2, known or CLUSTERS),
        None if data.sites is None else data.sites[rows],
    )
    return unlabelled_numbers(seen, lambda: ctx.rng("probe-unlabelled-kmeans"))


def _known(data: ProbeData) -> Tensor:
    """Return all labels that may be seen."""
    labels = torch.cat([part for part in (data.train_labels, data.judged.labels) if part is not None])
    return labels[labels >= 0]


def _kmeans_rows(config: EvaluationConfig, data: ProbeData, ctx: Context) -> Tensor:
    """Return sorted training rows to cluster, at most ``max_train_samples``, drawn without a look at labels."""
    order = torch.randperm(len(data.train_samples), generator=ctx.rng("probe-kmeans-rows"))
    return order[: config.max_train_samples or None].sort().values


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
        of_first = view_outputs([features.of], views, features.data.train_samples, rows, generator, first_only=True)
        pair = features.train(rows), of_first[0][0]
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
    """Return the training rows of each client that has any, at most ``max_client_samples`` of them.

    Large samples count more: first each client gives fewer. Where there are still too many, clients are drawn.
    """
    clients = [torch.arange(len(data.train_samples))] if client_indices is None else client_indices
    per_client, total = config.max_client_samples, config.max_train_samples
    if total:
        total = fitting_cap(data.train_samples, total)
        if total < config.max_train_samples:
            per_client = min(per_client, max(FEWEST_OF_A_CLIENT, total // max(1, len(clients))))
    sizes = torch.tensor([min(len(rows), per_client) for rows in clients])
    if total and sizes.sum() > total:
        order = torch.randperm(len(clients), generator=ctx.rng("probe-few-clients"))
        before = sizes[order].cumsum(0) - sizes[order]
        clients = [clients[client] for client in order[before < total].sort().values.tolist()]
    generator = ctx.rng("probe-clients")
    return [
        rows[torch.randperm(len(rows), generator=generator)[:per_client]].sort().values for rows in clients if len(rows) > 0
    ]
