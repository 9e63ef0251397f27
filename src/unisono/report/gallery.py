"""Gallery of a run: each cluster with its most typical and its borderline samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unisono.clustering.kmeans import KMeansClusters, kmeans
from unisono.core.context import Context
from unisono.report.blocks import Document, document, section
from unisono.report.embedding_map import SPRITE
from unisono.report.files import ReportFiles, Snapshot
from unisono.runs.directory import RunDirectory

FILE = "gallery.html"
DEFAULT_CLUSTERS = 10
MOST_CLUSTERS = 48
NUM_TYPICAL = 18
NUM_BORDERLINE = 9


def gallery_document(directory: RunDirectory, num_clusters: int | None = None) -> Document | None:
    """Return the gallery as data; None where the run left no samples to show.

    Args:
        directory: of the run.
        num_clusters: of k-means on the features, for a method that learns no clusters; None takes as many as there are classes,
            else 10.
    """
    files = ReportFiles(directory)
    rounds, points, samples = files.rounds(), files.read("points"), files.read("samples")
    if not rounds or points is None or samples is None:
        return None
    about, snapshot = files.read("about") or {}, files.load(rounds[-1])
    classes, labels = about.get("classes", []), points["labels"]
    names = about.get("client_names") or []
    clients = [names[client] if client < len(names) else f"client {client}" for client in points["clients"]]
    if snapshot.num_clusters:
        groups, typical = snapshot.clusters, snapshot.confidence
        origin = (
            "Clusters are those of the method. Typical samples are those that it is surest of, borderline ones the least sure."
        )
    else:
        features, found = _cluster(directory, snapshot, num_clusters or len(classes))
        number, groups, typical = len(found.centroids), found.assignment.numpy(), _margins(features, found)
        origin = (
            f"The method learns no clusters; these are {number} of k-means on its features. Typical samples are nearest to "
            "their own centroid alone, borderline ones nearly as near to another."
        )
    sizes = Counter(groups.tolist()).most_common(MOST_CLUSTERS)
    sections = []
    for cluster, size in sizes:
        members = np.flatnonzero(groups == cluster)
        members = members[np.argsort(-typical[members], kind="stable")].tolist()
        note = f"{size:,} of {len(groups):,} samples. {_shares('From', [clients[member] for member in members])}"
        if labels is not None:
            note += f" {_shares('Classes:', [_name(classes, labels[member]) for member in members])}"
        num_borderline = min(NUM_BORDERLINE, size // 3)
        rows = [("typical", members[: min(NUM_TYPICAL, size - num_borderline)])]
        rows += [("borderline", members[::-1][:num_borderline])] if num_borderline else []
        sections.append(section(f"cluster-{cluster}", f"Cluster {cluster}", [_sheet(rows, clients)], note))
    return document(
        f"Gallery of {directory.path.resolve().name}",
        f"{origin} Hover over a sample for its client.",
        sections,
        tiles=[(f"{len(np.unique(groups)):,}", "clusters with samples"), (f"{len(groups):,}", "samples, drawn from all")],
        assets={SPRITE: samples},
    )


def feature_clusters(directory: RunDirectory, num_clusters: int | None = None) -> tuple[Tensor, float] | None:
    """Return the clusters of k-means that the gallery shows: centroids of directions of features, and the variance about them.

    Args:
        directory: of the run; None comes back where it holds no features.
        num_clusters: as for ``gallery_document``.
    """
    files = ReportFiles(directory)
    rounds = files.rounds()
    if not rounds:
        return None
    number = num_clusters or len((files.read("about") or {}).get("classes", []))
    features, found = _cluster(directory, files.load(rounds[-1]), number)
    return found.centroids, float((features - found.centroids[found.assignment]).square().sum(dim=1).mean())


def _cluster(directory: RunDirectory, snapshot: Snapshot, num_clusters: int) -> tuple[Tensor, KMeansClusters]:
    """Return directions of features and their clusters; 0 takes the default number of them."""
    features = torch.from_numpy(np.nan_to_num(snapshot.features.astype(np.float32)))
    features = torch.nn.functional.normalize(features, dim=1)
    seed = int(directory.config_tree["run"]["seed"])
    number = min(num_clusters or DEFAULT_CLUSTERS, len(features))
    return features, kmeans(features, number, Context(seed).rng("gallery clusters"))


def _margins(features: Tensor, found: KMeansClusters) -> NDArray[np.float32]:
    """Return how much nearer each sample is to its own centroid than to any other."""
    distances = torch.cdist(features, found.centroids)
    own = distances.gather(1, found.assignment[:, None])[:, 0]
    others = distances.scatter(1, found.assignment[:, None], torch.inf).min(dim=1).values
    margins: NDArray[np.float32] = (-own if len(found.centroids) == 1 else others - own).numpy()
    return margins


def _sheet(rows: Sequence[tuple[str, list[int]]], clients: Sequence[str]) -> dict[str, Any]:
    shown = [{"name": name, "members": found, "titles": [clients[member] for member in found]} for name, found in rows]
    return {"kind": "sheet", "title": "", "note": "", "wide": True, "sprite": SPRITE, "rows": shown}


def _shares(word: str, names: Sequence[str]) -> str:
    """Return the three most frequent names with their shares."""
    common = Counter(sorted(names)).most_common(3)
    rest = ", others" if len(set(names)) > len(common) else ""
    return f"{word} {', '.join(f'{name} ({count / len(names):.0%})' for name, count in common)}{rest}."


def _name(names: Sequence[str], number: int) -> str:
    return "unknown" if number < 0 else names[number] if number < len(names) else str(number)
