from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Command
from unisono import load
from unisono.cli.evaluate import spread
from unisono.core.work_progress import WorkProgress


def test_the_last_state_gives_the_numbers_of_the_run(unisono: Command, demo: Path) -> None:
    content = json.loads(unisono("evaluate", demo, "--json").out)
    last = load(demo).metrics[-1]
    (run,) = content["runs"]
    names = ("linear", "knn", "labels-10")
    assert (run["run"], run["seed"], run["rounds"]) == ("runs/demo", 0, 2)
    assert run["probes"] == {name: last[f"probe.{name}"] for name in names}
    assert run["floors"] == json.loads((demo / "floors.json").read_text())
    assert set(run["floors"]) == {"raw pixels", "PCA of pixels", "untrained weights"}
    assert content["groups"][0]["std"] == dict.fromkeys(names)
    shown = " ".join(unisono("evaluate", demo).out.split())
    assert "raw pixels" in shown
    assert "warning: The encoder ends below a floor in" in shown


def test_commands_tell_how_far_they_are(unisono: Command, demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkProgress.__init__, "__defaults__", (0.0,))  # seconds of work before anything is shown
    assert "embedding samples: " in unisono("evaluate", demo, "--probe", "knn").err
    assert "drawing maps of samples: " in unisono("run", *SMALL, "--name", "b").err
    assert unisono("run", *SMALL, "--name", "a", "--quiet").err == ""


def test_chosen_probes(unisono: Command, demo: Path) -> None:
    content = json.loads(unisono("evaluate", demo, "--probe", "knn", "--probe", "alignment", "--json").out)
    assert set(content["runs"][0]["probes"]) == {"knn", "align", "uniformity", "score", "encoder-score"}


def test_another_encoder_and_other_probes_of_the_same_run(unisono: Command, tmp_path: Path) -> None:
    small = ("--set", "data.limit=120", "--set", "data.test_limit=40", "--set", "cohort.size=2", "--set", "federation.rounds=1")
    unisono("run", "orchestra/fashion-mini", *small, "--set", "model.width=0.25", "--name", "two", "--workers", "0", "--quiet")
    found = [
        json.loads(unisono("evaluate", "runs/two", "--set", f"method.evaluate={which}", "--json").out)
        for which in ("target", "online")
    ]
    target, online = (content["runs"][0]["probes"] for content in found)
    assert online["linear"] == load(tmp_path / "runs" / "two").metrics[-1]["probe.linear"]
    assert online != target
    assert "--set model.width cannot change a trained run" in unisono("evaluate", "runs/two", "--set", "model.width=1").sentence
    assert "offline" in unisono("evaluate", "runs/two", "--set", "method.evaluate=offline").sentence
    assert "--set takes section.key=value" in unisono("evaluate", "runs/two", "--set", "knn").sentence


def test_seeds_become_mean_and_deviation_and_other_settings_stay_apart(unisono: Command, demo: Path) -> None:
    unisono("run", *SMALL, "--seed", "1", "--name", "second", "--workers", "1", "--quiet")
    unisono("run", *SMALL, "--alpha", "9", "--name", "other", "--quiet")
    runs = (demo, "runs/second", "runs/other")
    content = json.loads(unisono("evaluate", *runs, "--probe", "linear", "--json").out)
    first, second = (run["probes"]["linear"] for run in content["runs"][:2])
    assert [group["seeds"] for group in content["groups"]] == [[0, 1], [0]]
    group = content["groups"][0]
    assert group["mean"]["linear"] == pytest.approx((first + second) / 2)
    assert group["std"]["linear"] == pytest.approx(abs(first - second) / 2**0.5)
    table = unisono("evaluate", *runs, "--probe", "linear").out
    assert f"{group['mean']['linear']:.4f} ± {group['std']['linear']:.4f}" in table
    assert {"demo and 1 more", "other"} <= {line[:15].strip() for line in table.splitlines()}


def test_an_interrupted_run_is_probed_at_its_newest_checkpoint(unisono: Command, demo: Path) -> None:
    shutil.rmtree(demo / "checkpoints" / "round-000002")
    content = json.loads(unisono("evaluate", demo, "--probe", "linear", "--json").out)
    assert content["runs"][0]["rounds"] == 1
    assert content["runs"][0]["probes"]["linear"] == load(demo).metrics[0]["probe.linear"]


def test_spread_is_that_of_a_sample() -> None:
    assert spread([1.0, 2.0, 3.0]) == pytest.approx(1.0)
    assert spread([1.0]) is None
