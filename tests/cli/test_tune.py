from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Command

pytest.importorskip("optuna")

DATA = ("--workers", "0", "--set", "data.limit=96", "--set", "data.test_limit=40")
SMALL = ("tune", "digits-smoke", "--rounds", "1", *DATA)


def test_a_table_and_where_the_best_recipe_lies(unisono: Command) -> None:
    arguments = (*SMALL, "--grid", "training.learning_rate=0.1,0.01,0.001")
    result = unisono(*arguments)
    assert (result.code, result.err) == (0, "")
    assert [line.split()[0] for line in result.out.splitlines() if line.startswith("trial")] == ["trial"] * 3
    assert "note: 3 trials of 1 round: this takes about 1 min" in result.out
    assert "learning_rate" in result.out
    assert "Recipe: tuning/digits-smoke/simclr-digits.toml" in result.out
    assert "the method has no projector" not in result.out
    content = json.loads(unisono(*arguments, "--json").out)
    assert len(content["trials"]) == 3
    assert content["recipe"] == "tuning/digits-smoke/simclr-digits.toml"


def test_a_method_by_name_leaves_a_recipe_that_runs(unisono: Command, tmp_path: Path) -> None:
    arguments = ("tune", "cfcl", "--dataset", "digits", "--budget", "0.1", "--rounds", "1", "--out", "mine.toml", *DATA)
    small = ("--set", "method.points_per_pull=2", "--set", "method.num_reserve=2", "--set", "training.batch_size=8")
    result = unisono(*arguments, *small, "--set", "consent.share_data=true", "--grid", "training.learning_rate=0.01,0.001")
    assert (result.code, result.err) == (0, "")
    assert "Run it: unisono run mine.toml" in result.out
    assert "the score is that of the encoder's features" in result.out
    assert (tmp_path / "tuning" / "cfcl-digits" / "trials.json").is_file()
    best = tomllib.loads((tmp_path / "mine.toml").read_text())
    ran = unisono("run", "mine.toml", "--name", "a", "--set", "federation.rounds=1", "--workers", "0", "--quiet")
    assert (ran.code, ran.err) == (0, "")
    config = tomllib.loads((tmp_path / "runs" / "a" / "config.toml").read_text())
    assert config["training"]["learning_rate"] == best["training"]["learning_rate"]
    assert config["data"]["limit"] == 96


def test_bad_input_is_one_sentence(unisono: Command) -> None:
    assert "--sampler must be grid or tpe" in unisono(*SMALL, "--sampler", "random").sentence
    assert "--grid takes section.key=value" in unisono(*SMALL, "--grid", "learning_rate=1").sentence
    assert "number of trials must be at least 1, got 0" in unisono(*SMALL, "--trials", "0").sentence
    assert "federation.rounds must be" in unisono(*SMALL[:2], "--rounds", "0").sentence
    assert "training.learning_rat" in unisono(*SMALL, "--grid", "training.learning_rat=1,2").sentence
    assert "budget must be a number of minutes above 0" in unisono(*SMALL, "--budget", "0").sentence
    assert "--out takes the path of a .toml file" in unisono(*SMALL, "--out", "here.txt").sentence


def test_a_search_whose_trials_all_fail_ends_with_one_sentence(unisono: Command) -> None:
    sentence = unisono(*SMALL, "--grid", "training.learning_rate=1e30,1e29").sentence
    assert sentence.startswith("All 2 trials failed, see tuning/digits-smoke/trials.json; the first: ")
    assert "Training has diverged" in sentence
