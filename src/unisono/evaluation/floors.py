"""Floors: the scores of encoders that have learnt nothing, by the same probes on the same samples.

An encoder is worth having if it beats all of them: raw pixels, their principal components, and its own untrained weights. The
clusters of a method are compared with those of k-means on each floor. Floors are measured once per data set and backbone and
kept in ``UNISONO_CACHE``, by default ``~/.cache/unisono``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from tempfile import NamedTemporaryFile
from typing import get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unisono.core.client_data import as_float
from unisono.core.config import parse_json
from unisono.core.context import Context
from unisono.core.mapped import batches, some_chunks
from unisono.evaluation.config import FRACTIONS, EvaluationConfig, ProbeName, chosen_probes
from unisono.evaluation.probe_data import ProbeData, Views
from unisono.evaluation.probes import run_probes
from unisono.evaluation.published import Augment

Floors = dict[str, dict[str, float]]
"""Scores by floor and by the name of the probe's number."""
PIXELS, PCA, UNTRAINED = "raw pixels", "PCA of pixels", "untrained weights"
FLOORS = (PIXELS, PCA, UNTRAINED)
MEASURED = tuple(name for name in get_args(ProbeName) if name not in FRACTIONS and name != "clusters")
"""Probes that floors have; fine-tuning needs a network that can be trained."""
JUDGED = ("linear", "knn", "labels-10")
"""Numbers by which an encoder is said to be above or below a floor."""
JUDGED_CLUSTERS = ("cluster-accuracy", "kmeans-accuracy")
"""Numbers by which clusters are, where the encoder has none."""
CLUSTER_SCORES = {
    "kmeans-accuracy": "cluster-accuracy",
    "kmeans-nmi": "nmi",
    "kmeans-ari": "ari",
    "kmeans-agreement": "cluster-agreement",
    "kmeans-balance": "cluster-balance",
}
"""Numbers of k-means, and the numbers of a method's own clusters that they are compared with."""
MOST_VALUES = 4096
"""Values of a sample that a floor looks at; larger samples are averaged down to them."""
NUM_COMPONENTS = 64
MOST_FITTED = 10_000
CHUNK = 512
"""Samples that the principal components are fitted to."""
FORMAT = 2
"""Part of the key, so that floors measured in another way are measured again."""


class Pixels(nn.Module):
    """The values of a sample; those of a large one are averaged down to a few thousand."""

    def forward(self, samples: Tensor) -> Tensor:
        """Return features of shape (batch, at most MOST_VALUES)."""
        channels, spatial = samples.shape[1], samples.dim() - 2
        edge = int((MOST_VALUES / channels) ** (1 / spatial))
        if max(samples.shape[2:]) > edge:
            length, *more = (min(edge, length) for length in samples.shape[2:])
            pooled = F.adaptive_avg_pool2d(samples, (length, more[0])) if more else F.adaptive_avg_pool1d(samples, length)
            return pooled.flatten(1)
        return samples.flatten(1)


class PrincipalComponents(nn.Module):
    """The first principal components of the values of a sample.

    Args:
        samples: to fit them to, as for ``embed``.
    """

    mean: Tensor
    components: Tensor

    def __init__(self, samples: Tensor) -> None:
        super().__init__()
        from sklearn import decomposition
        from threadpoolctl import threadpool_limits

        self.pixels = Pixels()
        order = torch.randperm(len(samples), generator=Context(0).rng("floors"))[:MOST_FITTED]
        values = torch.cat([self.pixels(as_float(batch)) for batch in batches(samples, CHUNK, order.sort().values)]).numpy()
        number = min(NUM_COMPONENTS, *values.shape)
        with threadpool_limits(1):
            fitted = decomposition.PCA(number, svd_solver="randomized", random_state=0).fit(values)
        self.register_buffer("mean", torch.from_numpy(np.asarray(fitted.mean_, dtype=np.float32)))
        self.register_buffer("components", torch.from_numpy(np.asarray(fitted.components_.T, dtype=np.float32)))

    def forward(self, samples: Tensor) -> Tensor:
        """Return features of shape (batch, at most NUM_COMPONENTS)."""
        projected: Tensor = (self.pixels(samples) - self.mean) @ self.components
        return projected


def measure_floors(
    config: EvaluationConfig,
    data: ProbeData,
    untrained: nn.Module,
    clusters: bool,
    views: Views | None = None,
    client_indices: Sequence[Tensor] | None = None,
    crop_flip: Augment | None = None,
    untrained_projector: nn.Module | None = None,
) -> Floors:
    """Return the scores of all floors, from the cache where they were measured before.

    Args:
        config: which probes, and how.
        data: samples and labels.
        untrained: the encoder before the first round, in eval mode.
        clusters: whether the method clusters, so that k-means is to be compared with it.
        views: as for ``run_probes``.
        client_indices: as for ``run_probes``.
        crop_flip: as for ``run_probes``.
        untrained_projector: the projector before the first round, where the method has one.
    """
    wanted = chosen_probes(config, data.has_labels, clusters, data.held_out)
    probes = [name for name in MEASURED if name in wanted and (name != "unlabelled" or views is not None)]
    if "clusters" in wanted and "kmeans" not in probes and (data.has_labels or config.kmeans_clusters is not None):
        probes.append("kmeans")
    if not probes or not len(data.train_samples):
        return {}
    chosen = config.model_copy(update={"probes": tuple(probes)})
    digest = _digest(chosen, data)
    if {"alignment", "unlabelled"} & set(probes) and views is not None:
        digest += _views_digest(data, views, client_indices)
    found: Floors = {}
    for name in FLOORS:
        projector = untrained_projector if name == UNTRAINED and "alignment" in probes else None
        nets = [net for net in (untrained, projector) if net is not None and name == UNTRAINED]
        weights = b"".join(_bytes(tensor) for net in nets for tensor in net.state_dict().values())
        key = hashlib.sha256(f"{FORMAT}|{name}|".encode() + digest + weights).hexdigest()[:32]
        scores = _read(key)
        if scores is None:
            scores = run_probes(
                chosen,
                _encoder(name, data, untrained),
                None,
                data,
                Context(0),
                views,
                client_indices=client_indices,
                crop_flip=crop_flip,
                projector=projector,
            )
            _write(key, scores)
        found[name] = scores | {own: scores[name] for name, own in CLUSTER_SCORES.items() if name in scores}
    return found


def _encoder(name: str, data: ProbeData, untrained: nn.Module) -> nn.Module:
    if name == UNTRAINED:
        return untrained
    return (Pixels() if name == PIXELS else PrincipalComponents(data.train_samples)).eval()


def verdict(probes: Mapping[str, float], floors: Mapping[str, Mapping[str, float]]) -> tuple[bool, str]:
    """Return whether an encoder is above all floors, and a sentence that says so; empty where nothing can be compared.

    Where the encoder was not probed, its clusters are judged.

    Args:
        probes: scores of the encoder, by name.
        floors: as ``measure_floors`` gave them.
    """
    judged = [name for name in JUDGED if name in probes]
    subject, ends, beats = ("The encoder", "ends", "beats") if judged else ("The clusters", "end", "beat")
    clusters = _clusters_verdict(probes, floors) if judged else ""
    judged = judged or [name for name in JUDGED_CLUSTERS if name in probes][:1]
    below = [
        f"{name} ({100 * probes[name]:.1f} against {100 * scores[name]:.1f} of {floor})"
        for name in judged
        for floor, scores in floors.items()
        if name in scores and probes[name] < scores[name]
    ]
    if below:
        return False, (
            f"{subject} {ends} below a floor in {'; '.join(below)}: the likely causes are too few rounds or epochs "
            "(federation.rounds, training.local_epochs), the learning rate (training.learning_rate), views that do not fit the "
            f"data (views.preset), and the backbone (model.backbone).{clusters}"
        )
    compared = [(name, floor) for name in judged[:1] for floor in floors if name in floors[floor]]
    if not compared:
        return True, ""
    name = compared[0][0]
    margins = [f"{100 * (probes[name] - floors[floor][name]):.1f} above {floor}" for _, floor in compared]
    return True, f"{subject} {beats} every floor: {name} {100 * probes[name]:.1f}, {', '.join(margins)} (points).{clusters}"


def _clusters_verdict(probes: Mapping[str, float], floors: Mapping[str, Mapping[str, float]]) -> str:
    """Return a sentence on clusters beside those of k-means on the best floor; empty where there is nothing to compare."""
    name = next((name for name in JUDGED_CLUSTERS if name in probes), "")
    known = {floor: scores[name] for floor, scores in floors.items() if name in scores}
    if not known:
        return ""
    best = max(known, key=known.__getitem__)
    place = "above" if probes[name] > known[best] else "not above"
    return f" Its clusters are {place} every floor: {name} {100 * probes[name]:.1f}, k-means on {best} {100 * known[best]:.1f}."


def mean_floors(runs: Sequence[Mapping[str, Mapping[str, float]]]) -> Floors:
    """Return the mean of floors over runs that differ in their seeds, which may draw other test samples; by floor and probe.

    Args:
        runs: floors of each run; those that lack a number do not count for it.
    """
    found: Floors = {}
    for name in FLOORS:
        for probe in dict.fromkeys(probe for floors in runs for probe in floors.get(name, {})):
            values = [floors[name][probe] for floors in runs if probe in floors.get(name, {})]
            # Equal values stay what they are to the last digit, so that groups with the same floors share a row.
            found.setdefault(name, {})[probe] = values[0] if len(set(values)) == 1 else fmean(values)
    return found


def floor_rows(groups: Mapping[str, Floors]) -> Floors:
    """Return floors as rows of one table: a row for all groups where they agree, and elsewhere a row for each group.

    Args:
        groups: floors by the name of a run or of a group of runs.
    """
    rows: Floors = {}
    for name in FLOORS:
        found = {label: floors[name] for label, floors in groups.items() if floors.get(name)}
        merged: dict[str, float] = {}
        for scores in found.values():
            common = merged.keys() & scores.keys()
            if merged and not (common and all(merged[probe] == scores[probe] for probe in common)):
                rows |= {f"{name}, {label}": scores for label, scores in found.items()}
                break
            merged |= scores
        else:
            rows |= {name: merged} if merged else {}
    return rows


def cache_directory() -> Path:
    """Return where floors are kept."""
    given = os.environ.get("UNISONO_CACHE")
    return (Path(given).expanduser() if given else Path.home() / ".cache" / "unisono") / "floors"


def _digest(config: EvaluationConfig, data: ProbeData) -> bytes:
    """Return a hash of the probes and of samples and labels."""
    found = hashlib.sha256(config.model_dump_json(exclude={"probe_every", "floors", "warm_start"}).encode())
    for tensor in (data.train_samples, data.train_labels, data.judged.samples, data.judged.labels):
        found.update(b"|none" if tensor is None else f"|{tuple(tensor.shape)}|{tensor.dtype}|".encode())
        for chunk in () if tensor is None else some_chunks(tensor, CHUNK):
            found.update(_bytes(chunk))
    return found.digest()


def _views_digest(data: ProbeData, views: Views, client_indices: Sequence[Tensor] | None) -> bytes:
    """Return a hash of what probes of views look at besides samples: the views, and who holds what."""
    first, _ = views(as_float(data.train_samples[:4]), Context(0).rng("floors"))
    found = hashlib.sha256(_bytes(first))
    for rows in (*(client_indices or ()), *(() if data.sites is None else (data.sites,))):
        found.update(b"|" + _bytes(rows))
    return found.digest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def _read(key: str) -> dict[str, float] | None:
    try:
        values = parse_json((cache_directory() / f"{key}.json").read_text(encoding="utf-8"))
        return {str(name): float(value) for name, value in values.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _write(key: str, scores: Mapping[str, float]) -> None:
    """Keep scores; a cache that cannot be written costs time and nothing else."""
    with suppress(OSError):
        directory = cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=directory, delete=False, encoding="utf-8") as file:
            json.dump(dict(scores), file)
        Path(file.name).replace(directory / f"{key}.json")
