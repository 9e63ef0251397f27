from __future__ import annotations

from unisono.config import resolve
from unisono.recipes import build_tree
from unisono.report.overview import MOST_COLUMNS, method_in_words, split_chart, split_in_words, turn_chart, what_was_run
from unisono.testing.tiny import tiny_config

ABOUT = {"sentence": "SimCLR: a loss.", "train_samples": 1200, "test_samples": 10, "input_shape": [1, 8, 8], "parameters": 99}


def test_facts_as_people_say_them() -> None:
    tree = tiny_config("simclr", {"privacy": {"clip_norm": 1.0, "noise_multiplier": 0.5}}).as_tree()
    pairs = dict(what_was_run(tree, ABOUT)["pairs"])
    assert pairs["method"] == "SimCLR: a loss."
    assert pairs["data set"] == "fashion-mini, 1,200 training and 10 test samples of 1 x 8 x 8"
    tree["data"] |= {"dataset": "folder", "path": "sites"}
    assert dict(what_was_run(tree, {})["pairs"])["data set"] == "folder in sites"
    assert pairs["a round"] == "4 clients; mean, fedavg, clipped to 1, noise x 0.5"
    assert pairs["length"] == "3 rounds, seed 0"
    assert "99 parameters" in pairs["encoder"]
    assert dict(what_was_run(tree, {})["pairs"])["method"] == "simclr"


def test_splits_in_words() -> None:
    tree = tiny_config("simclr", {"partition": {"scheme": "classes-per-client", "num_clients": 1}}).as_tree()
    assert split_in_words(tree) == "1 client, classes-per-client, 2 classes each"
    tree["partition"]["scheme"] = "natural"
    assert split_in_words(tree) == "clients as the data set has them"


def test_a_method_is_named_once() -> None:
    assert method_in_words("orchestra", "Orchestra: clusters.") == "Orchestra: clusters."
    assert method_in_words("mine", "Learns.") == "mine: Learns."
    assert method_in_words("mine", "") == "mine"


def test_a_column_per_client() -> None:
    chart = split_chart({"sizes": [3, 1], "counts": [[1, 2], [0, 1]]}, ["cat", "dog"], ["ann", "bob"])
    assert (chart["groups"], chart["parts"], chart["values"]) == (["ann", "bob"], ["cat", "dog"], [[1, 2], [0, 1]])
    assert chart["note"] == "4 samples, 1 to 3 a client; 1.5 of 2 classes a client on average."


def test_rotations_are_drawn_like_labels() -> None:
    split = {"sizes": [3, 1], "counts": [[3], [1]], "turns": [[1, 0, 2, 0, 0], [0, 0, 0, 0, 1]]}
    chart = turn_chart(split, ["ann", "bob"])
    assert chart is not None
    assert chart["parts"] == ["0 to 72°", "72 to 144°", "144 to 216°", "216 to 288°", "288 to 360°"]
    assert (chart["groups"], chart["values"], chart["shares"]) == (["ann", "bob"], split["turns"], True)
    assert chart["note"] == "1.5 of 5 angles a client on average."
    assert turn_chart({"sizes": [3], "counts": [[3]]}, []) is None


def test_many_clients_are_thinned_by_size() -> None:
    sizes = list(range(1, 1001))
    chart = split_chart({"sizes": sizes, "counts": [[size] for size in sizes]}, [], [])
    assert len(chart["groups"]) == MOST_COLUMNS
    assert chart["values"][0] == [1000]
    assert chart["values"] == sorted(chart["values"], reverse=True)
    assert chart["parts"] == ["samples"]
    assert "200 of 1,000 clients shown" in chart["note"]


def test_the_screening_of_updates_is_said() -> None:
    def said(*settings: str, of_federation: bool = True) -> str:
        tree = resolve(build_tree("simclr", {}, settings)).as_tree()
        return dict(what_was_run(tree, {}, of_federation=of_federation)["pairs"]).get("screening", "")

    assert said("aggregation.screen=10").startswith("an update more than 10 robust standard deviations longer than the median")
    assert said() == "none: aggregation.screen = 0"
    assert said("privacy.secure_aggregation=true", "aggregation.screen=10").startswith("none: the server of a secure sum")
    assert said(of_federation=False) == ""
