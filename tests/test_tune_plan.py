"""The plan of a search: what is tried, for how long, and what is said before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unisono.config import resolve
from unisono.core.config import parse_overrides
from unisono.core.errors import UserError
from unisono.fitting import operations_per_round, prepare
from unisono.recipes import Layer, assemble, build_tree, flag_layers
from unisono.tune_plan import Plan, default_grid, make_plan, parse_grid

RATES = (0.03, 0.01, 0.003, 0.001)
DIGITS = {"dataset": "digits", "clients": 12}


def planned(reference: str, *settings: str, **arguments: Any) -> Plan:
    flags = {} if reference == "digits-smoke" else DIGITS
    return make_plan(reference, [*flag_layers(flags), Layer("--set", parse_overrides(settings))], **arguments)


def test_default_grids_are_those_of_the_paper() -> None:
    assert default_grid(resolve(build_tree("simclr"))) == {"training.learning_rate": RATES}
    for method in ("orchestra", "byol"):
        grid = default_grid(resolve(build_tree(method)))
        assert grid == {"training.learning_rate": RATES, "method.ema": (0.9, 0.99, 0.996)}
    adam = default_grid(resolve({"method": {"name": "simclr"}, "training": {"optimizer": "adam"}}))
    assert max(adam["training.learning_rate"]) == 0.003


def test_a_grid_in_words() -> None:
    assert parse_grid(["training.learning_rate=0.1,0.01", "method.share=centroids,representations"]) == {
        "training.learning_rate": [0.1, 0.01],
        "method.share": ["centroids", "representations"],
    }
    for wrong in ("learning_rate=1", "training.learning_rate", "training.learning_rate=1,,2", "a.b=[1]"):
        with pytest.raises(UserError, match="--grid takes"):
            parse_grid([wrong])


def test_a_method_by_name_is_fitted_as_for_a_run() -> None:
    plan = planned("orchestra")
    experiment, _ = prepare(assemble("orchestra", flag_layers(DIGITS)))
    assert plan.config == experiment.config
    assert plan.config.cohort.size == 10
    config = plan.trial_config({"training.learning_rate": 0.003, "method.ema": 0.9}, Path("tuning/a"))
    assert config.training.learning_rate == 0.003
    assert config.method.model_dump()["ema"] == 0.9
    assert config.method.model_dump()["num_global_clusters"] == plan.config.method.model_dump()["num_global_clusters"] <= 20
    assert config.federation.rounds == plan.rounds
    assert config.evaluation.probes == ("alignment", "knn")
    assert not config.evaluation.floors


def test_rounds_and_trials_follow_from_the_budget() -> None:
    """Twelve points of Orchestra: a short budget shortens the trials, a shorter one drops points, a long one has 20 rounds."""
    epochs = "training.local_epochs=10"
    shortest, short, long = (planned("orchestra", epochs, budget=minutes) for minutes in (0.5, 2, 60))
    assert 2 <= shortest.num_trials < 12
    assert shortest.rounds >= 5
    experiment, _ = prepare(assemble("orchestra", [*flag_layers(DIGITS), Layer("--set", parse_overrides([epochs]))]))
    by_hand = (120 - 12 * 6) * 2e10 / (12 * operations_per_round(experiment))
    assert (short.num_trials, short.rounds) == (12, int(by_hand))
    assert 5 < short.rounds < 20
    assert (long.num_trials, long.rounds) == (12, 20)
    said = " ".join(short.notes)
    assert f"12 trials of {short.rounds} rounds: this takes about " in said
    assert "chosen to fit data and budget: training.learning_rate = 0.01" in said
    assert "cohort.size = 10" in said


def test_what_is_given_is_not_chosen() -> None:
    assert planned("simclr", rounds=2).rounds == 2
    assert planned("simclr", rounds=2).num_trials == 4, "given rounds need no budget"
    few = planned("orchestra", "training.local_epochs=10", rounds=5, budget=0.5)
    assert 2 <= few.num_trials < 12
    assert planned("orchestra", num_trials=3).num_trials == 3
    assert planned("simclr", "federation.rounds=7", budget=100).rounds == 7, "a trial is not longer than the run"
    assert planned("digits-smoke").rounds == 4
    fixed = planned("orchestra", "method.ema=0.9")
    assert list(fixed.grid) == ["training.learning_rate"], "an option that the user sets is not tuned"
    with pytest.raises(UserError, match="nothing to choose"):
        planned("simclr", "training.learning_rate=0.1")


def test_a_budget_that_is_too_short_says_so() -> None:
    plan = planned("simclr", "model.backbone=resnet18", "training.local_epochs=100", budget=0.1)
    assert (plan.num_trials, plan.rounds) == (2, 5)
    assert "longer than the budget of 0.1 min" in plan.notes[-1]


def test_bad_plans_are_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match="federated-kmeans has no learning rate"):
        planned("federated-kmeans")
    assert planned("federated-kmeans", grid={"method.num_clusters": [5, 10]}).num_trials == 2
    with pytest.raises(UserError, match=r"training\.learning_rate must be"):
        planned("simclr", grid={"training.learning_rate": [0.1, -1.0]})
    with pytest.raises(UserError, match="budget must be a number of minutes above 0, got -1"):
        planned("simclr", budget=-1)
    with pytest.raises(UserError, match="number of trials must be at least 1, got 0"):
        planned("simclr", num_trials=0)
