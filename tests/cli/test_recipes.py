"""Recipes that come with the package."""

from __future__ import annotations

from pathlib import Path

from unisono.config import FORMAT, resolve
from unisono.core.method import methods
from unisono.recipes import build_tree, list_recipes, load_recipe

ROOT = Path(__file__).parents[2] / "src" / "unisono" / "recipes"
EVERY = [(name, method) for name in list_recipes() for method in load_recipe(name).own_methods]


def test_recipes_resolve_with_every_method_they_know() -> None:
    for name, method in EVERY:
        tree = build_tree(name, {"method": method})
        config = resolve(tree)
        assert tree["format"] <= FORMAT, name
        assert config.method_name == method, name
        assert config.recipe.title, name
        assert config.recipe.scale in ("small", "paper"), name
        assert config.run.name is None, f"{name} names its run and can be run only once"


def test_every_method_has_numbers_in_a_recipe_of_each_scale() -> None:
    for scale in ("small", "paper"):
        known = {method for name, method in EVERY if load_recipe(name).about["scale"] == scale}
        common = {"cc"} if scale == "small" else set()  # it runs with the common numbers
        built_in = {name for name in methods if methods[name].__module__.startswith("unisono.")}  # examples register theirs
        assert known | common == built_in, scale


def test_recipes_are_few_and_short() -> None:
    files = list(ROOT.rglob("*.toml"))
    assert len(files) <= 40
    assert sum(len(path.read_text().splitlines()) for path in files) <= 900


def test_no_file_repeats_what_it_extends() -> None:
    for name in list_recipes():
        *parents, own = load_recipe(name).files
        for table, values in own.tree.items():
            if not isinstance(values, dict) or table == "methods":
                continue
            for key, value in values.items():
                given = [parent.tree[table][key] for parent in parents if key in parent.tree.get(table, {})]
                assert not given or given[-1] != value, f"{name} repeats {table}.{key}"
