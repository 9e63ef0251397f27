"""``unisono list``."""

from __future__ import annotations

import inspect
import json as json_format
from enum import StrEnum
from typing import Annotated, Any

import typer

from unisono.cli import options
from unisono.cli.tables import make_console, make_table

USUAL_MACHINE = " on two cores with --jobs 2"


class Kind(StrEnum):
    """Kinds of names that can be listed."""

    methods = "methods"
    datasets = "datasets"
    backbones = "backbones"
    partitioners = "partitioners"
    recipes = "recipes"
    studies = "studies"
    options = "options"


def list_names(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", hidden=True)],
    json: options.Json = False,
) -> None:
    """List methods, recipes and other names.

    KIND is methods, datasets, backbones, partitioners, recipes, studies or options (of all tables but [method]).

    Example: unisono list methods
    """
    if kind is Kind.recipes:
        _list_recipes(json)
        return
    if kind is Kind.studies:
        _list_studies(json)
        return
    summaries = _options() if kind is Kind.options else _registered(kind)
    if json:
        print(json_format.dumps(summaries))
    else:
        make_console().print(make_table(["name", "summary"], summaries.items()))


def _list_recipes(json: bool) -> None:
    """Print name, scale, methods with numbers of their own and title of every recipe."""
    from unisono.recipes import list_recipes, load_recipe

    found = {}
    for name in list_recipes():
        recipe = load_recipe(name)
        found[name] = {"scale": recipe.about["scale"], "methods": recipe.own_methods, "title": recipe.about["title"]}
    if json:
        print(json_format.dumps(found))
        return
    rows = [[name, row["scale"], f"{row['title']}\nmethods: {', '.join(row['methods'])}"] for name, row in found.items()]
    console = make_console()
    console.print(make_table(["name", "scale", "title, and methods with numbers of their own"], rows, whole=["name", "scale"]))
    console.print(
        "\nThe first method is the default; --method runs another, with the common numbers where it has none of its own."
    )


def _options() -> dict[str, str]:
    """Return every option with its description and its default."""
    from unisono.config import TABLES

    found = {}
    for table, kind in TABLES.items():
        for name, field in kind.model_fields.items():
            default = field.get_default(call_default_factory=True)
            words = "unset" if default is None else "required" if field.is_required() else json_format.dumps(default)
            found[f"{table}.{name}"] = f"{(field.description or '').rstrip('.')} (default: {words})"
    return found


def _list_studies(json: bool) -> None:
    """Print name, title, claim and costs of every study, by paper."""
    from rich.padding import Padding
    from rich.text import Text

    from unisono.studies.study import list_studies, read_study, scales_of

    found: dict[str, dict[str, Any]] = {}
    for name, path in list_studies().items():
        scales = {scale: read_study(path, scale).config for scale in scales_of(path)}
        first = next(iter(scales.values()))
        costs = {scale: config.cost for scale, config in scales.items()}
        found[name] = {"title": first.title, "claim": first.claim, "cost": costs}
    if json:
        print(json_format.dumps(found))
        return
    console = make_console()
    for name, study in found.items():
        console.print(Text.assemble((name, "bold"), f"  {study['title']}"))
        console.print(Padding(Text(study["claim"]), (0, 2)))
        times = "; ".join(f"{scale}: {cost.replace(USUAL_MACHINE, '')}" for scale, cost in study["cost"].items())
        console.print(Padding(Text(times, "dim"), (0, 2)))
        console.print()
    console.print(
        "Run one with 'unisono study NAME --scale SCALE'; the first scale is the default. Times without a machine are for"
        f"{USUAL_MACHINE.removeprefix(' on')}."
    )


def _registered(kind: Kind) -> dict[str, str]:
    """Return names and first lines of docstrings."""
    from unisono.core.method import methods
    from unisono.core.registry import Registry
    from unisono.data.datasets import datasets
    from unisono.data.partition import partitioners
    from unisono.models.backbones import backbones

    registries: dict[Kind, Registry[Any]] = {
        Kind.methods: methods,
        Kind.datasets: datasets,
        Kind.backbones: backbones,
        Kind.partitioners: partitioners,
    }
    registry = registries[kind]
    return {name: (inspect.getdoc(registry[name]) or "").partition("\n")[0].replace("``", "'") for name in registry}
