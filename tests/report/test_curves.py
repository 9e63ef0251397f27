from __future__ import annotations

from typing import Any

from unisono.report.curves import by_name, curve_blocks

COUNTS = {"asked": 2, "answered": 2, "bytes_down": 10, "bytes_up": 20}


def rounds(*metrics: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"round": number, **COUNTS, **values} for number, values in enumerate(metrics)]


def test_metrics_by_name_and_number_of_rounds() -> None:
    named = by_name(rounds({"offer.loss": 3.0, "loss": 1.0}, {"loss": 2.0}, {"loss": None, "probe.knn": 0.5}))
    assert named == {"offer.loss": {1: 3.0}, "loss": {1: 1.0, 2: 2.0}, "probe.knn": {3: 0.5}}


def test_every_metric_has_its_chart() -> None:
    values = {
        "loss": 1.0, "cluster_loss": 0.5, "delta": 0.9, "assignment_entropy": 0.3, "epsilon": 2.0,
        "probe.linear": 0.7, "probe.finetune-10": 0.8, "probe.kmeans-accuracy": 0.4, "probe.nmi": 0.2, "probe.align": 0.9,
    }  # fmt: skip
    charts = {chart["title"]: chart for chart in curve_blocks(rounds(values, {**values, "loss": 0.5}))}
    names = {title: [one["name"] for one in chart["series"]] for title, chart in charts.items()}
    assert names == {
        "Loss": ["loss", "cluster loss"],
        "Probes": ["linear", "finetune 10", "kmeans accuracy"],
        "Communication": ["to clients", "from clients"],
        "Clusters": ["nmi"],
        "Scores without labels": ["align"],
        "Mixing of clusters": ["delta"],
        "Entropy of assignments": ["assignment entropy"],
    }
    assert charts["Loss"]["series"][0]["y"] == [1.0, 0.5]
    assert charts["Communication"]["series"][1]["y"] == [20 / 1e6, 40 / 1e6]
    assert charts["Probes"]["y"]["percent"]


def test_missing_answers_are_shown() -> None:
    metrics = rounds({}, {})
    metrics[1]["answered"] = 1
    (chart,) = [chart for chart in curve_blocks(metrics) if chart["title"] == "Clients"]
    assert [one["y"] for one in chart["series"]] == [[2, 2], [2, 1]]


def test_nothing_logged_is_nothing_drawn() -> None:
    assert curve_blocks([]) == []
