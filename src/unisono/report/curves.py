"""Metrics over rounds, sorted into charts that share an axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from unisono.report.blocks import Block, Series, lines
from unisono.runs.probing import PREFIX

Metrics = Sequence[Mapping[str, Any]]
COUNTS = ("round", "asked", "answered", "bytes_down", "bytes_up")
WITHOUT_LABELS = ("align", "uniformity", "score")
SAID = {
    "delta": ("Mixing of clusters", "delta", "Inter-cluster mixing of the received centroids: near 1 they are not apart."),
    "assignment_entropy": ("Entropy of assignments", "share of its maximum", "Near 0 one cluster takes all."),
    "label_variance": ("Variance of label counts", "variance", "0 where every device holds as many samples of each class."),
}
"""Title, axis and meaning of single metrics."""


def curve_blocks(metrics: Metrics) -> list[Block]:
    """Charts of all that was logged; those without a value are left out."""
    named = by_name(metrics)
    probes = {name.removeprefix(PREFIX): series for name, series in named.items() if name.startswith(PREFIX)}
    others = {name: series for name, series in named.items() if not name.startswith(PREFIX)}
    losses = {name: series for name, series in others.items() if is_loss(name)}
    rest = {name: series for name, series in others.items() if name not in losses and not name.endswith("epsilon")}
    found = [
        _chart("Loss", "loss", losses, note="Mean over the clients of a round."),
        _chart("Probes", "test accuracy", _chosen(probes, is_accuracy), percent=True, note="On frozen features, with labels."),
        communication(metrics),
        _chart("Clusters", "score", _chosen(probes, is_cluster_score), note="1 is best."),
        _chart(
            "Scores without labels", "score", _chosen(probes, lambda name: name in WITHOUT_LABELS), note="Higher is better."
        ),
        answers(metrics),
    ]
    for name, series in rest.items():
        title, axis, note = SAID.get(name.rpartition(".")[2], (_words(name), _words(name), ""))
        found.append(_chart(title, axis, {name: series}, note=note))
    return [chart for chart in found if chart is not None]


def by_name(metrics: Metrics) -> dict[str, dict[int, float]]:
    """The values of every metric by the number of rounds done."""
    found: dict[str, dict[int, float]] = {}
    for entry in metrics:
        for name, value in entry.items():
            if name not in COUNTS and value is not None:
                found.setdefault(name, {})[entry["round"] + 1] = value
    return found


def is_loss(name: str) -> bool:
    """Whether a metric is a loss or a part of one."""
    return name.rpartition(".")[2] == "loss" or name.endswith("_loss")


def is_accuracy(name: str) -> bool:
    """Whether a probe gives an accuracy."""
    return name in ("linear", "linear-sgd", "knn") or name.startswith("finetune") or name.endswith("accuracy")


def is_cluster_score(name: str) -> bool:
    """Whether a probe says how good clusters are."""
    return not is_accuracy(name) and name not in WITHOUT_LABELS


def communication(metrics: Metrics) -> Block | None:
    """Megabytes since the start."""
    if not metrics:
        return None
    rounds = [entry["round"] + 1 for entry in metrics]
    series = [
        Series(name, rounds, [total / 1e6 for total in accumulate(entry[key] for entry in metrics)])
        for name, key in (("to clients", "bytes_down"), ("from clients", "bytes_up"))
    ]
    return lines("Communication", "round", "MB since the start", series, from_zero=True, note="All clients together.")


def answers(metrics: Metrics) -> Block | None:
    """Clients that were asked and that answered, where the two differ."""
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


def _chosen(named: Mapping[str, dict[int, float]], wanted: Callable[[str], bool]) -> dict[str, dict[int, float]]:
    return {name: series for name, series in named.items() if wanted(name)}


def _words(name: str) -> str:
    return name.replace("_", " ").replace("-", " ")
