"""The recipe that a search leaves: the options of its trials with the best values, for ``unisono run``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from unisono.config import FORMAT, Config
from unisono.core.config import Tree, merge, write_toml
from unisono.core.errors import UserError
from unisono.tune_plan import Plan, Value, as_tree

FIRST_LINE = "# Tuned without labels by 'unisono tune'."
SHOWN = {
    "data": ("dataset",),
    "partition": ("scheme", "num_clients", "alpha"),
    "model": ("backbone", "norm"),
    "views": ("preset",),
    "training": ("optimizer", "learning_rate", "local_epochs", "local_steps", "batch_size"),
    "cohort": ("size", "participation"),
    "federation": ("rounds",),
    "run": ("seed",),
}
"""Options that the recipe of a method by name spells out, whatever their source."""
NOT_OF_THE_RECIPE = ("--workers",)
"""Flags about the machine."""


def recipe_name(config: Config) -> str:
    """Return ``METHOD-DATASET``."""
    method = Path(config.method_name.rpartition(":")[2] or config.method_name).stem
    return f"{method}-{config.data.dataset.replace('/', '_')}"


def check_out(path: Path) -> None:
    """Raise a UserError if a recipe must not be written there, before anything runs."""
    if path.suffix != ".toml":
        raise UserError(f"--out takes the path of a .toml file, got {str(path)!r}.")
    if path.exists() and not (path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(FIRST_LINE)):
        raise UserError(f"{path} exists already and no search has written it: choose another --out or remove it.")


def recipe_text(plan: Plan, values: Mapping[str, Value], path: Path, comments: tuple[str, ...]) -> str:
    """Return a recipe as TOML: one that extends the recipe of the search, or the whole of a method by name.

    Args:
        plan: of the search.
        values: the best, by option.
        path: where it will lie, for a recipe that it extends by path.
        comments: lines to begin with.
    """
    head = "\n".join([FIRST_LINE, *(f"# {line}" for line in comments)])
    best = as_tree(values)
    if plan.layered.is_method:
        tree = _whole(plan, best)
    elif isinstance(plan.reference, Mapping):
        tree = {"format": FORMAT, **merge(plan.layered.tree, best)}
    else:
        tree = _extending(plan, str(plan.reference), best, path)
    return f"{head}\n\n{write_toml(tree)}"


def _whole(plan: Plan, best: Tree) -> Tree:
    """All that decides about a run, in the order in which it is read."""
    config = plan.config.as_tree()
    name = plan.config.method_name
    tree: Tree = {
        "format": FORMAT,
        "recipe": {"title": f"{name} on {plan.config.data.dataset}, tuned without labels"},
        "method": {"name": name},
        **{table: {key: config[table][key] for key in keys} for table, keys in SHOWN.items()},
    }
    given: Tree = reduce(merge, [layer.tree for layer in plan.layered.layers if layer.source not in NOT_OF_THE_RECIPE], {})
    tree = merge(merge(tree, given), {**best, "method": {**best.get("method", {}), "name": name}})
    return {table: content for table, content in tree.items() if not isinstance(content, Mapping) or any_value(content)}


def any_value(table: Mapping[str, Any]) -> bool:
    """Return whether anything of a table would be written."""
    return any(value is not None for value in table.values())


def _extending(plan: Plan, reference: str, best: Tree, path: Path) -> Tree:
    """The recipe, and what differs from it as numbers of its method, which win over those of the recipe."""
    parent = os.path.relpath(reference, path.resolve().parent) if reference.endswith(".toml") else reference
    over = [
        layer.tree
        for layer in plan.layered.layers
        if layer.source.startswith("--") and layer.source not in (*NOT_OF_THE_RECIPE, "--method")
    ]
    own: dict[str, Any] = reduce(merge, [*over, best], {})
    name = plan.config.method_name
    if "method" in own:
        own["method"] = {key: value for key, value in own["method"].items() if key != "name"}
    tables = {table: options for table, options in own.items() if options}
    return {"format": FORMAT, "extends": [parent], "method": {"name": name}, "methods": {name: tables}}
