from __future__ import annotations

import builtins
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unisono.config import resolve
from unisono.core.config import parse_overrides
from unisono.core.errors import UserError
from unisono.loaded import load
from unisono.recipes import Layer, build_tree
from unisono.tune import Trial, Tuning, tune
from unisono.tune_plan import Plan, make_plan
from unisono.tune_plot import draw_tuning

pytest.importorskip("optuna")

SMALL = ("data.limit=96", "data.test_limit=40", "model.backbone=cfcl-cnn", "engine.workers=0", "partition.num_clients=4")
GRID = {"training.learning_rate": [0.1, 0.01, 0.001]}
TWO = {"training.learning_rate": [0.1, 0.01]}


def small(*more: str, grid: dict[str, Any] = GRID, rounds: int = 1, **arguments: Any) -> Plan:
    return make_plan("digits-smoke", [Layer("--set", parse_overrides([*SMALL, *more]))], grid, rounds=rounds, **arguments)


def test_the_best_score_wins_and_the_same_call_runs_nothing_again(tmp_path: Path) -> None:
    started: list[object] = []
    arguments: dict[str, Any] = {"on_start": lambda config, values: started.append(values) or ()}
    found = tune(small(), tmp_path / "a", **arguments)
    assert len(found.trials) == len(started) == 3
    scores = [trial.score for trial in found.trials]
    assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]
    for trial in found.trials:
        last = load(trial.path).metrics[-1]
        assert trial.score == last["probe.score"] == pytest.approx(last["probe.align"] + 0.2 * last["probe.uniformity"])
        assert trial.knn == last["probe.knn"]
        assert trial.encoder_score == last["probe.encoder-score"] != trial.score, "the score is that of the projector"
        assert load(trial.path).round == 1
    assert found.best is not None
    assert found.recipe == tmp_path / "a" / "simclr-digits.toml"
    best = resolve(build_tree(found.recipe))
    assert best.training.learning_rate == found.best.values["training.learning_rate"]
    assert best.federation.rounds == 4, "the recipe's own length, not that of the trials"
    assert (tmp_path / "a" / "tuning.png").stat().st_size > 1000
    assert tune(small(), tmp_path / "a", **arguments) == found
    assert len(started) == 3
    with pytest.raises(UserError, match="another recipe, grid, sampler or number of rounds"):
        tune(small("run.seed=1"), tmp_path / "a", **arguments)


def test_a_search_that_was_killed_goes_on_in_the_middle_of_a_run(tmp_path: Path) -> None:
    script = (
        "import sys, time; from tests.test_tune import *; from unisono.federation.loop import Callback\n"
        "class Slow(Callback):\n"
        "    def on_round_end(self, state, record): any(Path(sys.argv[1]).glob('trials/*/status.json')) and time.sleep(600)\n"
        "tune(small(grid=TWO, rounds=2), Path(sys.argv[1]), on_start=lambda config, values: [Slow()])"
    )
    directory = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", script, str(directory)])
    while process.poll() is None:
        finished = {path.parent for path in directory.glob("trials/*/status.json")}
        begun = {path.parents[1] for path in directory.glob("trials/*/checkpoints/round-*")}
        if finished and begun - finished:
            break
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with (directory / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"half a li')
    unfinished = [path.parent for path in directory.glob("trials/*/config.toml") if not (path.parent / "status.json").exists()]
    assert len(unfinished) == 1
    first_line = (unfinished[0] / "timings.jsonl").read_text().splitlines()[0]
    found = tune(small(grid=TWO, rounds=2), directory)
    assert len(found.trials) == 2
    assert (unfinished[0] / "timings.jsonl").read_text().splitlines()[0] == first_line, "it was continued, not started anew"
    whole = tune(small(grid=TWO, rounds=2), tmp_path / "whole")
    assert [(trial.values, trial.score) for trial in found.trials] == [(trial.values, trial.score) for trial in whole.trials]


def test_tpe_and_runs_that_fail(tmp_path: Path) -> None:
    found = tune(small(grid={"training.learning_rate": [1e30, 0.01]}, sampler="tpe", num_trials=4), tmp_path / "tpe")
    assert 1 <= len(found.trials) <= 2
    failed = [trial for trial in found.trials if trial.values["training.learning_rate"] == 1e30]
    for trial in failed:
        assert trial.score is None
        assert "Training has diverged" in trial.problem
        assert trial is found.trials[-1]
    content = json.loads((tmp_path / "tpe" / "trials.json").read_text())
    assert len(content["trials"]) == len(found.trials)


def trial(score: float | None, knn: float | None) -> Trial:
    return Trial({"training.learning_rate": score or 0.0}, Path(), score, knn)


def test_correlation_is_pearsons() -> None:
    pairs = [(3.0, 0.9), (2.0, 0.7), (1.0, 0.8), (0.5, 0.1)]
    tuning = Tuning(Path(), [*(trial(*pair) for pair in pairs), trial(None, None)])
    x, y = (np.array(values) for values in zip(*pairs, strict=True))
    expected = ((x - x.mean()) * (y - y.mean())).sum() / (len(x) * x.std() * y.std())
    assert tuning.correlation == pytest.approx(expected)
    assert Tuning(Path(), [trial(1.0, 0.5), trial(0.5, 0.4)]).correlation is None
    assert Tuning(Path(), [trial(1.0, 0.4625), trial(0.5, 0.4625), trial(0.1, 0.4625)]).correlation is None
    assert Tuning(Path(), [trial(1.0, None)] * 3).correlation is None


def test_pictures_with_and_without_labels(tmp_path: Path) -> None:
    for number, knn in enumerate((0.5, None)):
        draw_tuning(Tuning(Path(), [trial(1.0, knn), trial(0.5, knn)]), tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")


def test_without_optuna_one_sentence_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"Tuning needs the extra 'tune': pip install 'unisono\[tune\]'\."):
        tune(small(), tmp_path / "a")
    assert not (tmp_path / "a").exists()
