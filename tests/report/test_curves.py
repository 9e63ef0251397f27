from __future__ import annotations

from typing import Any

from unisono.report.curves import by_name, curve_blocks, how_to_add_scores

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


def test_counts_that_never_change_are_facts_and_no_charts() -> None:
    first = {"cluster.smallest_cluster": 2.0, "smallest_cluster": 2.0, "num_centroids": 39.0, "stage": 1, "delta": 0.5}
    second = {"smallest_cluster": 2.0, "num_centroids": 39.0, "stage": 1, "delta": 0.5}
    *charts, same = curve_blocks(rounds(first, second))
    assert [chart["title"] for chart in charts] == ["Communication", "Mixing of clusters"]
    assert same["pairs"] == [
        ["smallest cluster", "2 samples. Behind a centroid that left a client; mean over clients."],
        ["centroids", "39 centroids."],
        ["stage", "1."],
    ]


def test_counts_that_change_have_a_title_and_a_unit_and_phases_share_a_chart() -> None:
    values = [
        {"cluster.smallest_cluster": 3.0 + number, "smallest_cluster": 2.0 + number / 2, "odd_one": number} for number in (0, 1)
    ]
    _, smallest, odd = curve_blocks(rounds(*values))
    assert (smallest["title"], smallest["y"]["label"]) == ("Smallest local cluster", "samples")
    assert [one["name"] for one in smallest["series"]] == ["smallest cluster (phase cluster)", "smallest cluster"]
    assert (odd["title"], odd["y"]["label"]) == ("Odd one", "odd one")


def test_bounds_of_information_share_a_chart() -> None:
    _, chart = curve_blocks(rounds({"mi_local": 1.5, "mi_entropy": 2.0}, {"mi_local": 1.6, "mi_entropy": 2.0}))
    assert (chart["title"], chart["y"]["label"], len(chart["series"])) == ("Mutual information", "nats", 2)


def test_how_to_get_scores_without_labels_is_said_where_they_are_missing() -> None:
    assert "evaluation.probes has 'alignment'" in how_to_add_scores(rounds({"probe.knn": 0.5}))
    assert how_to_add_scores(rounds({"probe.knn": 0.5, "probe.align": 0.5})) == ""
    assert how_to_add_scores(rounds({"loss": 1.0})) == ""


def test_missing_answers_are_shown() -> None:
    metrics = rounds({}, {})
    metrics[1]["answered"] = 1
    (chart,) = [chart for chart in curve_blocks(metrics) if chart["title"] == "Clients"]
    assert [one["y"] for one in chart["series"]] == [[2, 2], [2, 1]]


def test_nothing_logged_is_nothing_drawn() -> None:
    assert curve_blocks([]) == []
