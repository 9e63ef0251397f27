"""The map of embeddings, and contact sheets of the same samples: clusters, or nearest neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from unisono.report.blocks import Block
from unisono.report.files import ReportFiles, Snapshot
from unisono.report.projection import chosen_projection, project

SPRITE = "points"
MOST_CLUSTERS = 24
MOST_MEMBERS = 20
NUM_QUERIES = 10
NUM_NEIGHBOURS = 12
KINDS = {"tsne": "t-SNE", "pca": "PCA"}


def map_block(files: ReportFiles, projection: Literal["auto", "tsne", "pca"], seed: int) -> Block | None:
    """Return points of all rounds that have a snapshot, coloured by class, cluster and client; None where there is none.

    Args:
        files: what the run left.
        projection: how features become places.
        seed: of t-SNE.
    """
    rounds, points, about = files.rounds(), files.read("points"), files.read("about") or {}
    if not rounds or points is None:
        return None
    snapshots = [files.load(round) for round in rounds]
    num_points = len(points["clients"])
    kind = chosen_projection(projection, num_points)
    places = _places(files, rounds, snapshots, kind, seed)
    return {
        "kind": "map",
        "title": "Embeddings",
        "note": f"{KINDS[kind]} of {num_points:,} training samples. Hover to see a sample, click to single out its group.",
        "wide": True,
        "rounds": rounds,
        "x": places["x"],
        "y": places["y"],
        "colourings": _colourings(points, about, snapshots),
        "sprite": SPRITE if files.read("samples") else None,
    }


def sheet_block(files: ReportFiles) -> Block | None:
    """Return members of each cluster, the surest first; of a method without clusters, samples and their nearest neighbours."""
    rounds, points, about = files.rounds(), files.read("points"), files.read("about") or {}
    if not rounds or points is None or files.read("samples") is None:
        return None
    snapshot, labels = files.load(rounds[-1]), points["labels"]
    classes = about.get("classes", [])
    if snapshot.num_clusters:
        rows = _cluster_rows(snapshot, labels, classes)
        note = f"The samples the model is surest of come first.{_size_note(snapshot)}"
        return {"kind": "sheet", "title": "Clusters", "note": note, "wide": True, "sprite": SPRITE, "rows": rows}
    rows = _neighbour_rows(snapshot, labels, classes)
    framed = " A green frame is the same class, a red one another." if labels is not None else ""
    note = f"Samples, and those with the most similar features.{framed}"
    return {"kind": "sheet", "title": "Nearest neighbours", "note": note, "wide": True, "sprite": SPRITE, "rows": rows}


def _places(
    files: ReportFiles, rounds: list[int], snapshots: Sequence[Snapshot], kind: Literal["tsne", "pca"], seed: int
) -> dict[str, Any]:
    """Return coordinates of every round; those of the last call where nothing has changed since."""
    kept = files.read("map")
    key = {"rounds": rounds, "kind": kind, "points": len(snapshots[0].clusters)}
    if kept is not None and kept["key"] == key:
        return kept
    found = project([snapshot.features.astype(np.float64) for snapshot in snapshots], kind, seed)
    rounded = [np.round(part, 4) for part in found]
    places = {"key": key, "x": [part[:, 0].tolist() for part in rounded], "y": [part[:, 1].tolist() for part in rounded]}
    files.write("map", places)
    return places


def _colourings(points: Mapping[str, Any], about: Mapping[str, Any], snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if points["labels"] is not None:
        found.append({"name": "class", "names": about.get("classes", []), "groups": points["labels"]})
    num_clusters = max(snapshot.num_clusters for snapshot in snapshots)
    if num_clusters:
        groups = [snapshot.clusters.tolist() for snapshot in snapshots]
        names = [str(number) for number in range(num_clusters)]
        found.append({"name": "cluster", "names": names, "groups": groups, "perRound": True})
    names = about.get("client_names") or [str(client) for client in range(max(points["clients"]) + 1)]
    found.append({"name": "client", "names": names, "groups": points["clients"]})
    return found


def _size_note(snapshot: Snapshot) -> str:
    """Return a note on the number of empty clusters, and on clusters that are left out."""
    num_held = len(np.unique(snapshot.clusters))
    num_empty = snapshot.num_clusters - num_held
    note = f" The {MOST_CLUSTERS} largest of {num_held} clusters that hold points." if num_held > MOST_CLUSTERS else ""
    if num_empty:
        note += f" {num_empty} of {snapshot.num_clusters} clusters hold none of the {len(snapshot.clusters):,} points"
        note += " on the map; many empty ones are a sign of collapse."
    return note


def _cluster_rows(snapshot: Snapshot, labels: Sequence[int] | None, classes: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for cluster, size in Counter(snapshot.clusters.tolist()).most_common(MOST_CLUSTERS):
        members = np.flatnonzero(snapshot.clusters == cluster)
        members = members[np.argsort(-snapshot.confidence[members], kind="stable")]
        detail = f"{size} of {len(snapshot.clusters):,} points"
        if labels is not None:
            label, count = Counter(labels[member] for member in members.tolist()).most_common(1)[0]
            detail += f", {count / size:.0%} {_name(classes, label)}"
        shown = members[:MOST_MEMBERS].tolist()
        row = {"name": f"cluster {cluster}", "detail": detail, "members": shown}
        rows.append(row if labels is None else {**row, "titles": [_name(classes, labels[member]) for member in shown]})
    return rows


def _neighbour_rows(snapshot: Snapshot, labels: Sequence[int] | None, classes: Sequence[str]) -> list[dict[str, Any]]:
    features = np.nan_to_num(snapshot.features.astype(np.float32))
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    rows = []
    for query in _queries(labels, len(features)):
        similar = features @ features[query]
        similar[query] = -np.inf
        members = np.argsort(-similar, kind="stable")[: min(NUM_NEIGHBOURS, len(features) - 1)].tolist()
        row: dict[str, Any] = {"name": f"sample {query}", "query": query, "members": members}
        if labels is not None:
            row["name"] = _name(classes, labels[query])
            row["marks"] = [labels[member] == labels[query] for member in members]
            row["titles"] = [_name(classes, labels[member]) for member in members]
            row["detail"] = f"{sum(row['marks'])} of {len(members)} alike"
        rows.append(row)
    return rows


def _queries(labels: Sequence[int] | None, num_points: int) -> list[int]:
    """Return the first point of each class, or the first few points."""
    if labels is None:
        return list(range(min(NUM_QUERIES, num_points)))
    firsts: dict[int, int] = {}
    for point, label in enumerate(labels):
        firsts.setdefault(label, point)
    return [firsts[label] for label in sorted(firsts)][:NUM_QUERIES]


def _name(classes: Sequence[str], label: int) -> str:
    return "unknown" if label < 0 else classes[label] if label < len(classes) else str(label)
