"""Scores of the weights before the first round, beside the log of rounds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import unisono
from unisono.experiment import Experiment
from unisono.report.status import run_status
from unisono.running import start
from unisono.studies.history import History

SETTINGS = (
    "data.limit=120",
    "data.test_limit=40",
    "model.backbone=cfcl-cnn",
    "federation.rounds=3",
    "evaluation.probe_every=2",
    "evaluation.probes=['knn']",
    "evaluation.probe_start=true",
    "run.checkpoint_every=1",
    "run.keep_checkpoints=3",
    "engine.workers=0",
    "report.enabled=false",
)


def run(tmp_path: Path, name: str, *settings: str) -> Path:
    return unisono.run("digits-smoke", set=[*SETTINGS, f"run.directory={tmp_path}", f"run.name={name}", *settings]).path


def read(path: Path) -> dict[str, Any]:
    return json.loads((path / "start.json").read_text())  # type: ignore[no-any-return]


def test_the_start_is_that_of_untrained_weights(tmp_path: Path) -> None:
    path = run(tmp_path, "probed")
    experiment = Experiment.prepare(unisono.load(path).config)
    untrained = start(experiment, tmp_path / "untrained", rounds=0)
    assert read(path)["probe.knn"] == untrained.metrics[0]["probe.knn"]
    history = History(path)
    assert [place for place, _ in history.curve("knn", "rounds")] == [0, 2, 3]
    assert history.curve("knn", "megabytes")[0] == (0, read(path)["probe.knn"])
    assert [entry["round"] for entry in unisono.load(path).metrics] == [0, 1, 2], "the log has rounds only"
    assert run_status(unisono.load(path).directory).rounds_done == 3


def test_a_resumed_run_has_the_same_start(tmp_path: Path) -> None:
    path = run(tmp_path, "whole")
    for name, rounds in (("late", ("000002", "000003")), ("early", ("000001", "000002", "000003"))):
        copy = tmp_path / name
        shutil.copytree(path, copy)
        for round in rounds:
            shutil.rmtree(copy / "checkpoints" / f"round-{round}")
        if name == "early":
            (copy / "start.json").unlink()
        unisono.resume(copy)
        assert read(copy) == read(path)
        assert History(copy).curve("knn", "rounds") == History(path).curve("knn", "rounds")


def test_without_the_option_there_is_none(tmp_path: Path) -> None:
    assert not (run(tmp_path, "plain", "evaluation.probe_start=false") / "start.json").exists()
