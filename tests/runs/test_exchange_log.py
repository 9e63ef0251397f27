"""What clients moved, and how even it made their data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from unisono.core.client_data import ClientData
from unisono.core.errors import UserError
from unisono.experiment import Experiment
from unisono.methods.cfcl import CFCL
from unisono.runs.callbacks import false_negatives, label_counts, label_variance
from unisono.runs.export import model_card

RECIPE: dict[str, Any] = {
    "method": {"name": "cfcl", "num_reserve": 5, "num_candidates": 20, "points_per_pull": 4, "aggregation_steps": 4},
    "data": {"dataset": "digits", "limit": 200, "test_limit": 50},
    "partition": {"num_clients": 5},
    "graph": {"topology": "ring"},
    "training": {"local_steps": 2, "batch_size": 8},
    "federation": {"rounds": 4},
    "consent": {"share_data": True},
    "evaluation": {"probe_every": 0},
    "engine": {"workers": 0, "device": "cpu"},
}


def test_label_counts_leave_out_unknown_labels() -> None:
    labels = torch.tensor([2, 0, -1, 2, 1])
    assert label_counts(labels, torch.tensor([0, 2, 3, 1])).tolist() == [1, 0, 2]
    assert label_counts(labels, torch.empty(0, dtype=torch.int64)).tolist() == [0, 0, 0]


def test_label_variance_by_hand() -> None:
    """Shares 3/4, 1/4 have mean 1/2 and variance 1/16, whatever the counts; equal shares have none."""
    assert label_variance(torch.tensor([3, 1])) == label_variance(torch.tensor([300, 100])) == 1 / 16
    assert label_variance(torch.tensor([3, 3])) == label_variance(torch.tensor([0, 0])) == 0.0


def test_false_negatives_by_hand() -> None:
    assert false_negatives(torch.tensor([0, 1, 2, -1]), torch.tensor([0, 2, 2, -1])) == pytest.approx(2 / 3)
    assert false_negatives(torch.tensor([-1]), torch.tensor([0])) == 0.0


def read(path: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> unisono.LoadedRun:
    return unisono.run({**RECIPE, "run": {"directory": str(tmp_path), "name": "ring", "checkpoint_every": 2}})


def test_every_link_and_direction_is_logged(run: unisono.LoadedRun) -> None:
    lines = read(run.path, "exchange")
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    for line in lines:
        links = {(link["from"], link["to"]): link for link in line["links"]}
        assert set(links) == {(a, (a + step) % 5) for a in range(5) for step in (1, -1 % 5)}
        for link in links.values():
            assert link["pulled"] == 4
            assert link["pushed"] == (5 if line["round"] == 0 else 0)
            assert link["bytes"] == (link["pulled"] + link["pushed"]) * 64


def test_metrics_are_the_sums_and_means_of_the_log(run: unisono.LoadedRun) -> None:
    for line, metrics, timings in zip(*(read(run.path, name) for name in ("exchange", "metrics", "timings")), strict=True):
        assert metrics["points_moved"] == sum(link["pulled"] + link["pushed"] for link in line["links"])
        assert metrics["bytes_moved"] == sum(link["bytes"] for link in line["links"])
        assert metrics["label_variance"] == pytest.approx(sum(line["label_variance"]) / 5)
        assert metrics["steps"] == 2 * (line["round"] + 1)
        assert timings["seconds"]["exchange_slowest"] > 0
    delays = [metrics["delay_seconds"] for metrics in read(run.path, "metrics")]
    assert delays == sorted(delays)
    assert delays[0] == pytest.approx((5 + 4) * 64 * 8 / 1e6)


def test_exchange_makes_labels_more_even(run: unisono.LoadedRun, tmp_path: Path) -> None:
    alone = unisono.run({**RECIPE, "run": {"directory": str(tmp_path), "name": "alone"}}, set=["method.selection=none"])
    without, with_exchange = (read(path, "exchange")[-1] for path in (alone.path, run.path))
    assert without["links"] == []
    assert all(b < a for a, b in zip(without["label_variance"], with_exchange["label_variance"], strict=True))


def test_shares_are_those_of_the_points_that_steps_drew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loss was given, looked up in the labels by hand, is what the log has; per client and pull interval."""
    given: dict[tuple[int, int], list[tuple[int, int]]] = {}
    step, loss = CFCL.client_step, CFCL.loss
    place: list[Any] = []

    def watched(self: CFCL, nets: Any, received: Any, local: Any, data: ClientData, ctx: Any) -> Any:
        place[:] = [ctx, data]
        return step(self, nets, received, local, data, ctx)

    def watched_loss(self: CFCL, nets: Any, batch: Any, generator: torch.Generator) -> Any:
        terms = loss(self, nets, batch, generator)
        ctx, data = place
        known = {image.numpy().tobytes(): row for row, image in enumerate(data.samples)}
        both = torch.cat([batch.x, batch.data.batch(batch.negatives[-1])])
        rows = [known[image.numpy().tobytes()] for image in (255 * both).round().byte()]
        pairs = list(zip(rows[: len(batch)], rows[len(batch) :], strict=True))
        given.setdefault((ctx.round // 2, ctx.client_id), []).extend(pairs)
        return terms

    monkeypatch.setattr(CFCL, "client_step", watched)
    monkeypatch.setattr(CFCL, "loss", watched_loss)
    settings = ["method.pull_steps=4", "method.negatives=received", "data.limit=150"]
    run = unisono.run({**RECIPE, "run": {"directory": str(tmp_path), "name": "drawn"}}, set=settings)
    labels = Experiment.prepare(run.config).dataset.labels
    assert labels is not None
    lines = read(run.path, "exchange")
    assert [bool(line["links"]) for line in lines] == [True, False, True, False]
    for line in lines[1::2]:  # the end of an interval of two rounds
        for client in range(5):
            pairs = given[line["round"] // 2, client]
            anchors, negatives = (labels[torch.tensor(rows)] for rows in zip(*pairs, strict=True))
            assert len(pairs) == 4 * 8
            assert line["drawn_anchors"][client] == torch.bincount(anchors, minlength=10).tolist()
            assert line["drawn_negatives"][client] == torch.bincount(negatives, minlength=10).tolist()
            assert line["false_negatives"][client] == pytest.approx(float((anchors == negatives).double().mean()))
            for name, drawn in (("_anchors", anchors), ("_negatives", negatives), ("", torch.cat([anchors, negatives]))):
                shares = torch.bincount(drawn, minlength=10).double() / len(drawn)
                assert line[f"label_variance{name}"][client] == pytest.approx(float(shares.var(correction=0)))


def test_two_classes_have_the_variance_of_two_halves(tmp_path: Path) -> None:
    """Shares of 1/2 and eight of 0: (2 (1/2 - 1/10)^2 + 8 / 100) / 10 = 0.04, a little more by chance."""
    alone = unisono.run({**RECIPE, "run": {"directory": str(tmp_path), "name": "alone"}}, set=["method.selection=none"])
    for line in read(alone.path, "exchange"):
        assert all(0.04 <= variance < 0.05 for variance in line["label_variance"])
        assert line["label_variance_negatives"] == line["label_variance_anchors"], "another row of the same batch"


def test_no_client_sees_a_label(run: unisono.LoadedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    step = CFCL.client_step

    def watched(self: CFCL, nets: Any, received: Any, local: Any, data: ClientData, ctx: Any) -> Any:
        seen.append(data.labels)
        return step(self, nets, received, local, data, ctx)

    monkeypatch.setattr(CFCL, "client_step", watched)
    unisono.run({**RECIPE, "run": {"directory": str(tmp_path), "name": "watched"}})
    assert seen
    assert set(seen) == {None}


def test_interrupted_run_logs_the_same(run: unisono.LoadedRun, tmp_path: Path) -> None:
    path = tmp_path / "interrupted"
    shutil.copytree(run.path, path)
    shutil.rmtree(path / "checkpoints" / "round-000004")
    notes: list[str] = []
    unisono.resume(path, on_note=notes.append)
    assert notes == ["Continuing after round 2 of 4."]
    for name in ("exchange", "metrics"):
        assert read(path, name) == read(run.path, name)


@pytest.mark.parametrize("last", [1, 3, 4])
def test_interrupted_run_with_two_clocks_ends_the_same(tmp_path: Path, last: int) -> None:
    """A pull every three rounds from the fourth on, an aggregation every two: the end is bit-identical wherever it stops."""
    settings = ["method.pull_steps=6", "method.pull_at_start=false", "method.negatives=received", "federation.rounds=6"]
    logs = {"checkpoint_every": 1, "keep_checkpoints": 6, "directory": str(tmp_path), "name": "whole"}
    whole = unisono.run({**RECIPE, "run": logs}, set=settings)
    path = tmp_path / "interrupted"
    shutil.copytree(whole.path, path)
    for round in range(last + 1, 7):
        shutil.rmtree(path / "checkpoints" / f"round-{round:06}")
    resumed = unisono.resume(path)
    for name in ("exchange", "metrics"):
        assert read(path, name) == read(whole.path, name)
    for name, tensor in whole.server.groups["encoder"].items():
        assert torch.equal(resumed.server.groups["encoder"][name], tensor)
    assert [metrics["union_negatives"] for metrics in read(path, "metrics")] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("graph.mean_degree=0.5", r"graph\.mean_degree must be higher"),
        ("consent.share_data=false", r"consent\.share_data = true"),
    ],
)
def test_refused_before_anything_is_written(tmp_path: Path, setting: str, message: str) -> None:
    recipe = {**RECIPE, "graph": {"topology": "geometric"}, "run": {"directory": str(tmp_path), "name": "refused"}}
    with pytest.raises(UserError, match=message):
        unisono.run(recipe, set=[setting])
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(("share_data", "sentence"), [(True, "agreed to share samples"), (False, "without moving")])
def test_model_card_says_whether_samples_moved(run: unisono.LoadedRun, share_data: bool, sentence: str) -> None:
    tree = run.config.as_tree()
    tree["consent"] = {"share_data": share_data}
    assert sentence in model_card(tree, run.directory.load_run_info(), [])
