"""Recipes that come with the package."""

from __future__ import annotations

import pytest

from unisono.config import FORMAT, list_recipes, read_recipe, resolve


@pytest.mark.parametrize("name", list_recipes())
def test_recipe_resolves_and_says_what_it_is(name: str) -> None:
    tree = read_recipe(name)
    config = resolve(tree)
    assert tree["format"] <= FORMAT
    assert config.recipe.title
    assert config.recipe.scale in ("small", "paper")
    assert config.run.name is None, "a recipe that names its run can be run only once"


def test_there_are_recipes_of_the_first_methods() -> None:
    methods = ("simclr", "byol", "simsiam", "specloss", "rotpred", "supervised")
    assert {f"{method}-fashion-mini" for method in methods} | {"digits-smoke"} <= set(list_recipes())
    for method in methods:
        assert resolve(read_recipe(f"{method}-fashion-mini")).method_name == method
