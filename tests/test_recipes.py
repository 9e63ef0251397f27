"""References, ``extends``, ``[methods.X]``, fragments, priorities and where options come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import unisono
from unisono.config import resolve
from unisono.core.errors import UserError
from unisono.core.method import Method, methods
from unisono.methods.simclr import SimCLR
from unisono.recipes import Layer, assemble, build_tree, list_recipes, load_recipe


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return name

    return write_file


def test_a_reference_is_a_path_else_a_recipe_else_a_method(write: Any, tmp_path: Path) -> None:
    write("own.toml", '[method]\nname = "byol"\n')
    assert build_tree("own.toml")["method"] == build_tree(tmp_path / "own.toml")["method"] == {"name": "byol"}
    assert build_tree("orchestra/cifar10-silo")["method"]["ema"] == 0.99
    assert build_tree("byol") == {"method": {"name": "byol"}}
    assert build_tree({"method": {"name": "byol"}, "run": {"seed": 3}})["run"] == {"seed": 3}
    write("mine.py", "from unisono.methods.simclr import SimCLR\nclass Mine(SimCLR):\n    pass\n")
    assert resolve(build_tree("mine.py:Mine")).method_name == f"{tmp_path / 'mine.py'}:Mine"


def test_extends_merges_each_file_once_and_the_later_one_wins(write: Any) -> None:
    write("base.toml", '[method]\nname = "simclr"\n[run]\nseed = 1\nkeep_checkpoints = 5\n[training]\nbatch_size = 4\n')
    write("left.toml", 'extends = ["base.toml"]\n[run]\nseed = 2\n[training]\nbatch_size = 2\n')
    write("sub/right.toml", 'extends = ["../base.toml"]\n[training]\nbatch_size = 3\n')
    name = write("top.toml", 'extends = ["left.toml", "sub/right.toml"]\n[training]\nlocal_epochs = 4\n')
    sources = [file.source for file in load_recipe(name).files]
    assert sources == ["base.toml", "left.toml", "sub/right.toml", "top.toml"]
    tree = build_tree(name)
    assert tree["run"] == {"seed": 2, "keep_checkpoints": 5}, "base.toml does not come again after left.toml"
    assert tree["training"] == {"batch_size": 3, "local_epochs": 4}
    assert "extends" not in tree


def test_another_method_replaces_the_whole_table(write: Any) -> None:
    write("base.toml", '[method]\nname = "orchestra"\nema = 0.5\n[methods.byol]\nmethod.ema = 0.7\n')
    same = write("same.toml", 'extends = ["base.toml"]\n[method]\nname = "orchestra"\nprojection_dim = 8\n')
    assert build_tree(same)["method"] == {"name": "orchestra", "ema": 0.5, "projection_dim": 8}
    other = write("other.toml", 'extends = ["base.toml"]\n[method]\nname = "byol"\nhidden_dim = 8\n')
    assert build_tree(other)["method"] == {"name": "byol", "hidden_dim": 8, "ema": 0.7}
    assert build_tree(other, {"method": "orchestra"})["method"] == {"name": "orchestra"}
    unnamed = write("unnamed.toml", 'extends = ["other.toml"]\n[method]\nprojection_dim = 4\n')
    assert build_tree(unnamed)["method"] == {"name": "byol", "hidden_dim": 8, "ema": 0.7, "projection_dim": 4}


def test_numbers_of_a_method_count_only_when_it_runs(write: Any) -> None:
    name = write(
        "r.toml",
        '[method]\nname = "orchestra"\nema = 0.5\n[training]\nlearning_rate = 0.1\nbatch_size = 8\n'
        '[methods.byol]\ntraining.learning_rate = 0.2\nmethod.ema = 0.7\nmodel.norm = "batch"\n'
        "[methods.orchestra]\ntraining.learning_rate = 0.3\n",
    )
    default, byol, simclr = (build_tree(name, {"method": method}) for method in (None, "byol", "simclr"))
    assert (default["method"], default["training"]["learning_rate"]) == ({"name": "orchestra", "ema": 0.5}, 0.3)
    assert (byol["method"], byol["model"]) == ({"name": "byol", "ema": 0.7}, {"norm": "batch"})
    assert byol["training"] == {"learning_rate": 0.2, "batch_size": 8}
    assert (simclr["method"], simclr["training"]["learning_rate"]) == ({"name": "simclr"}, 0.1)
    assert build_tree(name, None, ["method.name=byol"]) == byol
    assert build_tree(name, {"method": "simclr"}, ["method.name=byol"]) == byol, "--set wins"
    assert build_tree(name, {"method": "byol"}, ["method.ema=0.9"])["method"] == {"name": "byol", "ema": 0.9}


def test_priorities_from_defaults_to_set(write: Any) -> None:
    def rate(reference: str, flags: dict[str, Any] | None = None, *overrides: str) -> float:
        return resolve(build_tree(reference, flags, overrides)).training.learning_rate

    bare = write("bare.toml", '[method]\nname = "simclr"\n')
    assert (rate(bare), rate(bare, {"method": "byol"})) == (0.003, 0.01), "option default, method default"
    tables = write("tables.toml", 'extends = ["bare.toml"]\n[training]\nlearning_rate = 0.4\n')
    assert rate(tables, {"method": "byol"}) == 0.4
    own = write("own.toml", 'extends = ["tables.toml"]\n[methods.byol.training]\nlearning_rate = 0.5\n')
    later = write("later.toml", 'extends = ["own.toml"]\n[training]\nlearning_rate = 0.6\n')
    assert (rate(own, {"method": "byol"}), rate(later, {"method": "byol"}), rate(later)) == (0.5, 0.5, 0.6)
    assert rate(later, {"method": "byol"}, "training.learning_rate=0.7") == 0.7
    tree = build_tree(later, {"rounds": 3, "engine": "flower"}, ["federation.rounds=4"])
    assert (tree["federation"]["rounds"], tree["engine"]["kind"]) == (4, "flower")


def test_fragments_are_extended_and_neither_listed_nor_run(write: Any) -> None:
    assert "uv/semi" not in list_recipes()
    tree = build_tree("uv/cifar10-semi")
    assert tree["labels"] == {"fraction": 0.1}
    assert "fragment" not in tree["recipe"]
    with pytest.raises(UserError, match=r"^uv/semi is a fragment, .*: run one that extends it, such as uv/cifar10-semi\.$"):
        build_tree("uv/semi")
    name = write("part.toml", '[recipe]\nfragment = true\n[method]\nname = "byol"\n')
    with pytest.raises(UserError, match=r"^part\.toml is a fragment"):
        build_tree(name)
    write("odd.toml", '[recipe]\nfragment = "yes"\n')
    with pytest.raises(UserError, match=r"recipe\.fragment must be true or false, got 'yes'"):
        build_tree("odd.toml")


def test_a_method_without_numbers_of_its_own_is_noted() -> None:
    chosen = Layer("--method", {"method": {"name": "fedu"}})
    assert assemble("orchestra/cifar10", [chosen]).notes == (
        "orchestra/cifar10 has no numbers of its own for fedu, which runs with the common ones.",
    )
    assert not assemble("orchestra/cifar10", [Layer("--method", {"method": {"name": "byol"}})]).notes
    assert not assemble("orchestra/cifar10").notes
    assert not assemble("simclr", [chosen]).notes


def test_sources_of_options(write: Any) -> None:
    name = write("own.toml", 'extends = ["orchestra/cifar10-silo"]\nrun.seed = 4\n')
    over = [Layer("--method", {"method": {"name": "byol"}}), Layer("--set", {"method": {"ema": 0.5}})]
    layered = assemble(name, over)
    found = {
        ("method", "name"): "--method",
        ("method", "ema"): "--set",
        ("method", "divergence_threshold"): "orchestra/cifar10-silo [methods.byol]",
        ("training", "learning_rate"): "orchestra/cifar10-silo [methods.byol]",
        ("training", "batch_size"): "orchestra/cifar10-silo",
        ("data", "dataset"): "orchestra/cifar10",
        ("run", "seed"): "own.toml",
        ("method", "hidden_dim"): None,
    }
    assert {path: layered.source(path) for path in found} == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('extends = "orchestra/cifar10"', "extends must be a list of recipes or paths"),
        ("extends = [1]", "extends must be a list of recipes or paths"),
        ('extends = ["orchestra/cifar11"]', "neither a recipe nor a .toml file. Did you mean 'orchestra/cifar10'?"),
        ('extends = ["simclr"]', "r.toml extends 'simclr', which is neither a recipe nor a .toml file."),
        ('extends = ["gone.toml"]', "r.toml extends 'gone.toml', and there is no file "),
        ('extends = ["r.toml"]', "extends goes in a circle: r.toml -> r.toml."),
        ('extends = ["a.toml"]', "extends goes in a circle: a.toml -> b.toml -> a.toml."),
        ('extends = ["new.toml"]', "new.toml has format 9, and this unisono reads formats up to 1"),
        ("methods = 3", "r.toml: methods must be written as [methods.NAME], got 3."),
        ("[methods]\nbyol = 3", "methods.byol must be a table of tables, such as [methods.byol.training], got 3."),
        ("[methods.biol]", "r.toml: methods.biol names no known method. Did you mean 'byol'?"),
        ("[methods.byol.trainnig]", "methods.byol.trainnig is not a known table. Did you mean 'training'?"),
        ("[methods.byol]\ntraining = 3", "methods.byol.training must be a table, got 3."),
        ("[methods.byol.training]\nlearn_rate = 1", "methods.byol.training.learn_rate is not a known option. Did you mean"),
        ("[methods.byol.training]\nlearning_rate = 'fast'", "methods.byol.training.learning_rate must be a number"),
        ("[methods.byol.method]\nemma = 1", "methods.byol.method.emma is not a known option. Did you mean 'ema'?"),
        ('[methods.byol.method]\nname = "simclr"', "methods.byol.method.name must be left out"),
    ],
)
def test_a_mistake_is_one_sentence_whichever_method_runs(write: Any, text: str, sentence: str) -> None:
    write("a.toml", 'extends = ["b.toml"]')
    write("b.toml", 'extends = ["a.toml"]')
    write("new.toml", "format = 9")
    name = write("r.toml", f'{text}\n[method]\nname = "simclr"\n')
    with pytest.raises(UserError) as error:
        build_tree(name)
    assert sentence in str(error.value)


def test_unknown_names_have_the_closest() -> None:
    for wrong, right in {"orchestra/cifar1": "orchestra/cifar10", "orchestra-cifar10-silo": "orchestra/cifar10-silo"}.items():
        with pytest.raises(UserError, match=rf"There is no recipe or method '{wrong}'\. Did you mean '{right}'\?"):
            build_tree(wrong)
    with pytest.raises(UserError, match=r"There is no method 'biol'\. Did you mean 'byol'\?"):
        resolve(build_tree("orchestra/cifar10", {"method": "biol"}))
    with pytest.raises(UserError, match=r"There is no option 'methd'\. Did you mean 'method'\?"):
        build_tree("simclr", {"methd": "byol"})


@pytest.mark.parametrize(
    ("defaults", "sentence"),
    [
        ({"trainnig": {"batch_size": 3}}, "Mine.defaults: trainnig is not a known table. Did you mean 'training'?"),
        ({"training": {"batch_siz": 3}}, "Mine.defaults: training.batch_siz is not a known option. Did you mean 'batch_size'?"),
        ({"training": {"batch_size": "many"}}, "Mine.defaults: training.batch_size must be"),
        ({"training": 3}, "Mine.defaults: training must be a table, got 3."),
        ({"method": {"temperature": 1.0}}, "Mine.defaults: method is not a known table."),
    ],
)
def test_defaults_of_a_method_are_checked(monkeypatch: pytest.MonkeyPatch, defaults: Any, sentence: str) -> None:
    mine: type[Method] = type("Mine", (SimCLR,), {"defaults": defaults})
    methods["simclr"]  # loads the registry
    monkeypatch.setitem(methods._things, "mine", mine)
    with pytest.raises(UserError) as error:
        resolve({"method": {"name": "mine"}})
    assert sentence in str(error.value)


def test_the_api_takes_a_method(tmp_path: Path) -> None:
    small = [
        "data.limit=64",
        "data.test_limit=20",
        "report.enabled=false",
        f"run.directory={tmp_path}",
        "evaluation.probes=['knn']",
    ]
    run = unisono.run("digits-smoke", method="byol", rounds=1, workers=0, name="a", set=small)
    assert (run.config.method_name, run.config.recipe.scale) == ("byol", "small")
