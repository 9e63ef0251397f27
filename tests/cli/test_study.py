from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.studies.conftest import SMALL


@pytest.mark.usefixtures("few_prototype_steps")
def test_a_study_from_start_to_end(unisono: Command, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    planned = unisono("study", "small.toml", "--only", "simclr", "--seeds", "0", "--dry-run")
    assert planned.code == 0
    assert planned.out.count("not run") == 2
    assert "; 2 runs" in planned.out
    assert (
        "; 1 run\n" in unisono("study", "small.toml", "--only", "simclr", "--only", "alpha-10", "--seeds", "0", "--dry-run").out
    )
    assert not (tmp_path / "runs").exists()
    part = unisono("study", "small.toml", "--only", "simclr", "--seeds", "0-1")
    assert part.code == 0, part
    assert "[1/4] SimCLR, alpha 0.1, seed 0: knn" in part.out
    repeat = "unisono study small.toml --seeds 0-1 --only simclr"
    assert repeat in (tmp_path / "runs" / "small" / "report.html").read_text()
    whole = unisono("study", "small.toml")
    assert whole.code == 0, whole
    assert "Orchestra, alpha 10, seed 1: knn" in whole.out
    assert "SimCLR, alpha 0.1, seed 0" not in whole.out, "a finished run is kept"
    assert "[70.1 ± 0.3]" in whole.out
    assert max(map(len, whole.out.splitlines()[-12:])) < 120
    directory = tmp_path / "runs" / "small"
    names = ("results.json", "results.csv", "results.md", "figure.png", "figure.svg", "report.html")
    assert [name for name in names if not (directory / name).is_file()] == []
    results = json.loads(unisono("study", "small.toml", "--json").out)
    assert results == json.loads((directory / "results.json").read_text())
    assert {run["status"] for run in results["runs"]} == {"finished"}


def test_several_runs_at_a_time_make_the_same_table(unisono: Command, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    one = unisono("study", "small.toml", "--seeds", "0", "--directory", "one", "--json")
    two = unisono("study", "small.toml", "--seeds", "0", "--directory", "two", "--json", "--jobs", "2")
    assert two.code == 0, two
    assert json.loads(two.out)["results"] == json.loads(one.out)["results"]
    planned = unisono("study", "small.toml", "--seeds", "0,1", "--directory", "one", "--name", "again", "--dry-run")
    assert planned.out.count(f"in {Path('one', 'small')}") == 6
    assert planned.out.count("not run") == 6
    fresh = unisono("study", "small.toml", "--seeds", "0", "--directory", "one", "--name", "again", "--dry-run", "--no-reuse")
    assert fresh.out.count("not run") == 6
    copied = unisono("study", "small.toml", "--seeds", "0", "--directory", "one", "--name", "again")
    assert "6 runs with the same settings are copied from one/small" in copied.out
    assert "seed 0: knn" not in copied.out, "nothing runs"
    again = unisono("study", "small.toml", "--seeds", "0", "--directory", "one", "--name", "again", "--json")
    assert json.loads(again.out)["results"] == json.loads(one.out)["results"]


def test_failures_in_helpers_are_listed_once(unisono: Command, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL.replace('"method.projection_dim=16"', '"model.pretrained=nowhere"'))
    result = unisono("study", "small.toml", "--only", "Orchestra", "--seeds", "0", "--jobs", "2")
    assert result.code == 1
    assert result.out.count("\nfailed: Orchestra") == 2, "one for each setting"


@pytest.mark.usefixtures("few_prototype_steps")
def test_failures_are_listed_and_the_exit_code_tells(unisono: Command, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL.replace('"method.projection_dim=16"', '"model.pretrained=nowhere"'))
    result = unisono("study", "small.toml", "--only", "SimCLR", "--only", "Orchestra", "--only", "alpha 10", "--seeds", "0")
    assert result.code == 1
    assert "failed: Orchestra, alpha 10, seed 0: model.pretrained = 'nowhere'" in result.out
    assert "[1/2] SimCLR, alpha 10, seed 0: knn" in result.out
    report = json.loads((tmp_path / "runs" / "small" / "results.json").read_text())
    assert [run["reason"] != "" for run in report["runs"] if run["variant"] == "Orchestra"] == [False, True]


def test_a_metric_that_no_run_has_is_said_to_be_unknown(unisono: Command, tmp_path: Path) -> None:
    one = SMALL.replace('"knn"', '"my-number", "knn"', 1)
    (tmp_path / "small.toml").write_text(one)
    result = unisono("study", "small.toml", "--only", "simclr", "--only", "alpha-10", "--seeds", "0")
    assert result.code == 0, result
    assert "No run has a number 'my-number' (study.metrics). Known: " in result.out
    assert ", knn, " in result.out.partition("Known: ")[2]
    assert "No run has a number 'knn'" not in result.out


def test_mistakes(unisono: Command, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    assert "There is no study 'small'" in unisono("study", "small").sentence
    assert "--seeds takes numbers" in unisono("study", "small.toml", "--seeds", "first").sentence
    assert "--jobs must be at least 1, got 0" in unisono("study", "small.toml", "--jobs", "0").sentence
    assert "names no seed" in unisono("study", "small.toml", "--seeds", "3-1").sentence
    assert "has no scale 'paper'" in unisono("study", "small.toml", "--scale", "paper").sentence
    assert "training.learning_rat" in unisono("study", "small.toml", "--set", "training.learning_rat=1").sentence


@pytest.mark.usefixtures("few_prototype_steps")
def test_every_variant_is_tuned_with_the_same_effort(unisono: Command, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    words = ("study", "small.toml", "--tune", "1", "--seeds", "0", "--only", "alpha 10")
    shown = unisono(*words)
    assert shown.code == 0, shown
    assert "SimCLR, alpha 10: training.learning_rate = 0.0" in shown.out
    assert "trials of 1 round." in shown.out
    found = json.loads(unisono(*words, "--json").out)
    assert [row["variant"] for row in found["searches"]] == ["SimCLR", "Orchestra"], "untrained weights have nothing to tune"
    for row in found["searches"]:
        assert sorted(trial["rate"] for trial in row["trials"]) == [0.001, 0.003, 0.01, 0.03]
        assert row["rate"] == max(row["trials"], key=lambda trial: trial["score"])["rate"]
    assert not (tmp_path / "runs").exists(), "trials are no runs of the study"
    assert "at least 1, got 0" in unisono("study", "small.toml", "--tune", "0").sentence
    assert "give one of the three" in unisono("study", "small.toml", "--tune", "1", "--dry-run").sentence
