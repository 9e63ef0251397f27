"""Metrics over rounds, sorted into charts that share an axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from unisono.report.blocks import Block, Series, facts, lines
from unisono.runs.evaluation import PREFIX

Metrics = Sequence[Mapping[str, Any]]
COUNTS = ("round", "asked", "answered", "bytes_down", "bytes_up")
WITHOUT_LABELS = ("align", "uniformity", "score", "encoder-score")
SHARES = ("view-agreement", "own-site", "mean-cosine")
SHARES_NOTE = "Views that find each other; neighbours from the same site; a mean cosine near 1 is a collapse."
RANK = "effective-rank"
INFORMATION = "mi_"
"""Metrics of this prefix bound mutual information and share a chart."""
SAID = {
    "active": ("Triplets that still teach", "share of triplets", "Those whose loss is not 0."),
    "assignment_entropy": ("Entropy of assignments", "share of its maximum", "Near 0 one cluster takes all."),
    "bytes_moved": ("Bytes between clients", "bytes a round", "What neighbours sent each other."),
    "consistency": ("Consistency", "share of samples", "Those that keep their cluster if all are clustered in one place."),
    "delay_seconds": ("Delay", "seconds since the start", "Of exchange and uploads, in the network that is modelled."),
    "delta": ("Mixing of clusters", "delta", "Inter-cluster mixing of the received centroids: near 1 they are not apart."),
    "divergence": ("Divergence", "distance", "Of the global encoder from the one a client trained last."),
    "false_negatives": ("False negatives", "share of triplets", "Those whose negative has the class of its anchor."),
    "label_variance": ("Variance of label shares", "variance", "0 where clients draw as many samples of each class."),
    "label_variance_anchors": ("Variance of anchors' label shares", "variance", ""),
    "label_variance_negatives": ("Variance of negatives' label shares", "variance", ""),
    "moved": ("Movement of centroids", "distance", "The farthest that one has moved in the round."),
    "num_centroids": ("Centroids that arrived", "centroids", ""),
    "personal_predictor": ("Personal predictors", "share of clients", "Clients that kept their own."),
    "own_weight": ("Weight of own models", "mean over clients", "1 where clients start from their own model alone."),
    "points_moved": ("Points between clients", "points a round", "What neighbours sent each other."),
    "pseudo_labelled": ("Pseudo-labels", "share of samples", ""),
    "rotation_accuracy": ("Rotations told", "accuracy", "On the clients' own samples, while they train."),
    "skipped_batches": ("Skipped batches", "batches of a client", "Too small to learn from."),
    "smallest_cluster": ("Smallest local cluster", "samples", "Behind a centroid that left a client; mean over clients."),
    "steps": ("Steps of a client", "steps since the start", ""),
    "union_negatives": ("Negatives from the union", "share of triplets", "Nothing was received that could serve instead."),
}
"""Title, axis and meaning of single metrics."""


def curve_blocks(metrics: Metrics) -> list[Block]:
    """Return charts of all that was logged; those without a value are left out."""
    named = by_name(metrics)
    probes = {name.removeprefix(PREFIX): series for name, series in named.items() if name.startswith(PREFIX)}
    others = {name: series for name, series in named.items() if not name.startswith(PREFIX)}
    losses = {name: series for name, series in others.items() if is_loss(name)}
    rest = {name: series for name, series in others.items() if name not in losses and not name.endswith("epsilon")}
    information = _chosen(rest, lambda name: name.startswith(INFORMATION))
    single = once(_chosen(rest, lambda name: name not in information))
    constant = _chosen(single, lambda name: is_constant_count(single[name]))
    found = [
        _chart("Loss", "loss", losses, note="Mean over the clients of a round."),
        _chart("Probes", "test accuracy", _chosen(probes, is_accuracy), percent=True, note="On frozen features, with labels."),
        communication(metrics),
        _chart("Clusters", "score", _chosen(probes, is_cluster_score), note="1 is best."),
        _chart(
            "Scores without labels", "score", _chosen(probes, lambda name: name in WITHOUT_LABELS), note="Higher is better."
        ),
        _chart("Views and sites", "share", _chosen(probes, lambda name: name in SHARES), note=SHARES_NOTE, percent=True),
        _chart("Dimensions of the features", "effective rank", _chosen(probes, lambda name: name == RANK)),
        answers(metrics),
        _chart("Mutual information", "nats", information, note="Bounds, for the networks as clients receive them."),
    ]
    changing = _chosen(single, lambda name: name not in constant)
    for last in dict.fromkeys(_last(name) for name in changing):
        title, axis, note = said(last)
        found.append(_chart(title, axis, {name: changing[name] for name in changing if _last(name) == last}, note=note))
    found.append(_unchanged(constant))
    return [chart for chart in found if chart is not None]


def said(name: str) -> tuple[str, str, str]:
    """Return title, axis and meaning of a metric; of one that nobody has described, its name in words."""
    words = _words(_last(name))
    return SAID.get(_last(name), (words[:1].upper() + words[1:], words, ""))


def once(named: Mapping[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    """Return the metrics without those that repeat a later phase's under the same name: ``cluster.size`` beside ``size``."""
    found = dict(named)
    for name, series in named.items():
        whole = named.get(_last(name), {})
        if _last(name) != name and whole and all(whole.get(round) == value for round, value in series.items()):
            del found[name]
    return found


def is_constant_count(series: Mapping[int, float]) -> bool:
    """Return whether a metric is a whole number that never changes, so that a chart of it shows nothing."""
    values = set(series.values())
    return len(values) == 1 and float(next(iter(values))).is_integer()


def how_to_add_scores(metrics: Metrics) -> str:
    """Return a hint on how to log scores that need no labels, if the run was probed with labels alone; else an empty string."""
    probes = [name.removeprefix(PREFIX) for name in by_name(metrics) if name.startswith(PREFIX)]
    if not probes or any(name in WITHOUT_LABELS for name in probes):
        return ""
    return "Scores without labels (align, uniformity) are logged where evaluation.probes has 'alignment' among others."


def by_name(metrics: Metrics) -> dict[str, dict[int, float]]:
    """Return the values of every metric by the number of rounds done."""
    found: dict[str, dict[int, float]] = {}
    for entry in metrics:
        for name, value in entry.items():
            if name not in COUNTS and value is not None:
                found.setdefault(name, {})[entry["round"] + 1] = value
    return found


def is_loss(name: str) -> bool:
    """Return whether a metric is a loss or a part of one."""
    return _last(name) == "loss" or name.endswith("_loss")


def is_accuracy(name: str) -> bool:
    """Return whether a probe gives an accuracy."""
    return name in ("linear", "linear-sgd", "knn", "labels-10") or name.startswith("finetune") or name.endswith("accuracy")


def is_cluster_score(name: str) -> bool:
    """Return whether a probe scores clusters."""
    return not is_accuracy(name) and name not in (*WITHOUT_LABELS, *SHARES, RANK)


def communication(metrics: Metrics) -> Block | None:
    """Return a chart of megabytes since the start."""
    if not metrics:
        return None
    rounds = [entry["round"] + 1 for entry in metrics]
    series = [
        Series(name, rounds, [total / 1e6 for total in accumulate(entry[key] for entry in metrics)])
        for name, key in (("to clients", "bytes_down"), ("from clients", "bytes_up"))
    ]
    return lines("Communication", "round", "MB since the start", series, from_zero=True, note="All clients together.")


def answers(metrics: Metrics) -> Block | None:
    """Return a chart of clients that were asked and that answered, where the two differ."""
    if all(entry["asked"] == entry["answered"] for entry in metrics):
        return None
    rounds = [entry["round"] + 1 for entry in metrics]
    series = [Series(name, rounds, [entry[name] for entry in metrics]) for name in ("asked", "answered")]
    return lines("Clients", "round", "clients", series, from_zero=True)


def _chart(
    title: str, axis: str, named: Mapping[str, Mapping[int, float]], *, note: str = "", percent: bool = False
) -> Block | None:
    if not named:
        return None
    series = [Series(_words(name), list(values), list(values.values())) for name, values in named.items()]
    return lines(title, "round", axis, series, note=note, percent=percent)


def _unchanged(named: Mapping[str, Mapping[int, float]]) -> Block | None:
    """Return counts that are the same in every round, in a line each."""
    pairs = []
    for name, series in named.items():
        _, axis, note = said(name)
        unit = f" {axis}" if _last(name) in SAID else ""
        pairs.append((_words(name), f"{next(iter(series.values())):,.0f}{unit}. {note}".strip()))
    return facts("The same in every round", pairs) if pairs else None


def _chosen(named: Mapping[str, dict[int, float]], wanted: Callable[[str], bool]) -> dict[str, dict[int, float]]:
    return {name: series for name, series in named.items() if wanted(name)}


def _last(name: str) -> str:
    """Return a metric's name without its phase."""
    return name.rpartition(".")[2]


def _words(name: str) -> str:
    phase, _, last = name.rpartition(".")
    words = last.replace("_", " ").replace("-", " ").removeprefix("num ")
    return f"{words} (phase {phase})" if phase else words
