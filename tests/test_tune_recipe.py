"""The recipe that a search leaves runs as it is, with the options of the trials and the best values."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unisono.config import Config, resolve
from unisono.core.config import merge, parse_overrides
from unisono.core.errors import UserError
from unisono.recipes import Layer, assemble, build_tree, flag_layers
from unisono.tune_plan import Plan, as_tree, make_plan
from unisono.tune_recipe import FIRST_LINE, check_out, recipe_name, recipe_text

BEST = {"training.learning_rate": 0.003, "method.ema": 0.9}


def planned(reference: str, *settings: str, **flags: Any) -> Plan:
    return make_plan(reference, [*flag_layers(flags), Layer("--set", parse_overrides(settings))])


def written(plan: Plan, path: Path, values: Any = BEST) -> tuple[Config, dict[str, Any]]:
    """The recipe as a run reads it, and as it stands in the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(recipe_text(plan, values, path, ("score 0.5",)))
    text = path.read_text()
    assert text.startswith(f"{FIRST_LINE}\n# score 0.5\n\nformat = 1\n")
    return resolve(assemble(str(path)).tree), tomllib.loads(text)


def expected(plan: Plan, values: Any = BEST) -> Config:
    config = resolve(merge(plan.layered.tree, as_tree(values)))
    return replace(config, model=plan.config.model)


def test_a_method_by_name_leaves_a_whole_recipe(tmp_path: Path) -> None:
    plan = planned("orchestra", "views.flip=0.0", dataset="digits", clients=12, workers=0)
    found, tree = written(plan, tmp_path / "a.toml")
    assert found.recipe.title == "orchestra on digits, tuned without labels"
    assert found.engine.workers is None, "the number of processes belongs to the machine"
    assert replace(found, recipe=plan.config.recipe, engine=plan.config.engine) == expected(plan)
    assert "extends" not in tree
    assert tree["data"] == {"dataset": "digits"}
    assert tree["model"]["backbone"] == "convnet"
    assert tree["cohort"] == {"size": 10}
    assert tree["method"]["ema"] == 0.9
    assert tree["method"]["num_global_clusters"] == plan.config.method.model_dump()["num_global_clusters"]
    assert tree["federation"] == {"rounds": 20}


def test_a_recipe_is_extended_and_its_own_numbers_of_the_method_are_overruled(tmp_path: Path) -> None:
    plan = planned("orchestra/fashion-mini", "data.limit=500", method="byol", clients=20)
    found, tree = written(plan, tmp_path / "a.toml")
    assert tree["extends"] == ["orchestra/fashion-mini"]
    assert tree["method"] == {"name": "byol"}
    assert found == resolve(merge(plan.layered.tree, as_tree(BEST)))
    assert (found.training.learning_rate, found.partition.num_clients, found.data.limit) == (0.003, 20, 500)


def test_a_file_is_extended_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = '[method]\nname = "simclr"\n[methods.simclr.training]\nlearning_rate = 0.5\n[data]\ndataset = "digits"\n'
    Path("own.toml").write_text(own)
    plan = planned("own.toml")
    found, tree = written(plan, tmp_path / "tuning" / "own" / "a.toml", {"training.learning_rate": 0.01})
    assert tree["extends"] == ["../../own.toml"]
    assert found.training.learning_rate == 0.01
    assert build_tree("own.toml")["training"]["learning_rate"] == 0.5


def test_tables_of_a_dictionary_are_written_whole(tmp_path: Path) -> None:
    plan = make_plan({"method": {"name": "byol"}, "data": {"dataset": "digits"}})
    found, _ = written(plan, tmp_path / "a.toml")
    assert found == resolve(merge(plan.layered.tree, as_tree(BEST)))


def test_names_and_files_that_are_not_overwritten(tmp_path: Path) -> None:
    assert recipe_name(planned("simclr", dataset="digits").config) == "simclr-digits"
    check_out(tmp_path / "new.toml")
    (tmp_path / "old.toml").write_text(FIRST_LINE)
    check_out(tmp_path / "old.toml")
    (tmp_path / "mine.toml").write_text("format = 1")
    with pytest.raises(UserError, match="exists already and no search has written it"):
        check_out(tmp_path / "mine.toml")
    with pytest.raises(UserError, match=r"--out takes the path of a \.toml file"):
        check_out(tmp_path / "recipe.txt")
