from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Command

pytest.importorskip("optuna")

SMALL = ("tune", "digits-smoke", "--rounds", "1", "--workers", "0", "--set", "data.limit=96", "--set", "data.test_limit=40")


def test_a_table_and_where_the_best_recipe_lies(unisono: Command) -> None:
    arguments = (*SMALL, "--grid", "training.learning_rate=0.1,0.01,0.001")
    result = unisono(*arguments)
    assert (result.code, result.err) == (0, "")
    assert [line.split()[0] for line in result.out.splitlines() if line.startswith("trial")] == ["trial"] * 3
    assert "learning_rate" in result.out
    assert "tuning/digits-smoke/best.toml" in result.out
    content = json.loads(unisono(*arguments, "--json").out)
    assert len(content["trials"]) == 3


def test_bad_input_is_one_sentence(unisono: Command) -> None:
    assert "--sampler must be grid or tpe" in unisono(*SMALL, "--sampler", "random").sentence
    assert "--grid takes section.key=value" in unisono(*SMALL, "--grid", "learning_rate=1").sentence
    assert "number of trials must be at least 1, got 0" in unisono(*SMALL, "--trials", "0").sentence
    assert "federation.rounds must be" in unisono(*SMALL[:2], "--rounds", "0").sentence
    assert "training.learning_rat" in unisono(*SMALL, "--grid", "training.learning_rat=1,2").sentence
