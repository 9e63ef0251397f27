"""Options that several commands share.

Positional arguments are hidden from the list of options, and described in the command's text, because typer and click disagree
about their help between versions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.cli.completion import complete_datasets, complete_methods, complete_recipes, complete_studies

Run = Annotated[Path, typer.Argument(metavar="RUN", hidden=True)]
Recipe = Annotated[str, typer.Argument(metavar="RECIPE|METHOD", hidden=True, autocompletion=complete_recipes)]
OptionalRecipe = Annotated[str | None, typer.Argument(metavar="[RECIPE|METHOD]", hidden=True, autocompletion=complete_recipes)]
Study = Annotated[str, typer.Argument(metavar="STUDY", hidden=True, autocompletion=complete_studies)]
Method = Annotated[
    str | None,
    typer.Option(help="Run this method instead of the recipe's default (method.name).", autocompletion=complete_methods),
]
Dataset = Annotated[
    str | None,
    typer.Option(help="A name from 'unisono list datasets' (data.dataset).", autocompletion=complete_datasets),
]
NumClients = Annotated[int | None, typer.Option(help="Size of the federation (partition.num_clients).")]
Alpha = Annotated[
    float | None, typer.Option(help="Dirichlet concentration; smaller: fewer classes per client (partition.alpha).")
]
Seed = Annotated[int | None, typer.Option(help="The source of all randomness (run.seed).")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any option of a recipe; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
OnError = Annotated[
    str | None,
    typer.Option(help="Files that cannot be read: stop or skip; default: data.on_error of the run.", show_default=False),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the path of the run and nothing else.")]
