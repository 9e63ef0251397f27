"""``unisono tune``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unisono.cli import options
from unisono.cli.tables import decimal, make_console, make_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from unisono.config import Config
    from unisono.federation.loop import Callback
    from unisono.tune import Trial, Tuning
    from unisono.tune_plan import Plan, Value


def tune(
    reference: options.Recipe,
    method: options.Method = None,
    budget: Annotated[float | None, typer.Option(metavar="MINUTES", help="Of two cores, for all trials; default 10.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,C", help="Values of an option; repeatable. Default: the paper's grid."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds per trial; default: what the budget allows, at most 20.")] = None,
    sampler: Annotated[
        str, typer.Option(help="grid: every point; tpe: Optuna's TPE over them; default grid.", show_default=False)
    ] = "grid",
    trials: Annotated[int | None, typer.Option(help="Most trials; default: what grid and budget allow.")] = None,
    dataset: options.Dataset = None,
    clients: options.NumClients = None,
    alpha: options.Alpha = None,
    workers: Annotated[int | None, typer.Option(help="Processes (engine.workers).")] = None,
    seed: options.Seed = None,
    settings: options.Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The recipe to write; default METHOD-DATASET.toml in the search.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the search's directory; default: the recipe's.")] = None,
    directory: Annotated[Path, typer.Option(help="Where searches go; default tuning.", show_default=False)] = Path("tuning"),
    json: options.Json = False,
) -> None:
    """Choose hyper-parameters without labels and write a recipe.

    One run per trial; the best has the highest Align + 0.2 Unif of the projector's outputs on the clients' samples. The same
    command continues a search that was stopped. RECIPE|METHOD is as for 'unisono run': a method by name gets a network, a
    cohort and epochs that fit. Run the recipe that is written with 'unisono run FILE'.

    Example: unisono tune digits-smoke --rounds 1 --trials 2
    """
    from unisono.cli.progress import Progress
    from unisono.core.config import parse_overrides
    from unisono.core.errors import UserError
    from unisono.recipes import Layer, flag_layers
    from unisono.tune import tune as search
    from unisono.tune_plan import make_plan, parse_grid
    from unisono.tune_plot import describe

    if sampler not in ("grid", "tpe"):
        raise UserError(f"--sampler must be grid or tpe, got {sampler!r}.")
    flags = {"method": method, "dataset": dataset, "clients": clients, "alpha": alpha, "workers": workers, "seed": seed}
    plan = make_plan(
        reference,
        [*flag_layers(flags), Layer("--set", parse_overrides(settings or ()))],
        parse_grid(grid) if grid else None,
        sampler="grid" if sampler == "grid" else "tpe",
        num_trials=trials,
        rounds=rounds,
        budget=budget,
    )
    path = directory / (name or _name(plan, reference, method))
    console = make_console()
    console.quiet = json
    for note in plan.notes:
        console.print(f"note: {note}", soft_wrap=True)
    number = 0

    def announce(config: Config, values: Mapping[str, Value]) -> Sequence[Callback]:
        nonlocal number
        number += 1
        console.print(f"trial {number}: {describe(values)}", soft_wrap=True)
        return [Progress(config, console, redrawn=False)]

    def conclude(trial: Trial) -> None:
        console.print(trial.problem if trial.score is None else f"score {trial.score:.4f}\n", soft_wrap=True)

    try:
        found = search(plan, path, out=out, command=_command(), on_start=announce, on_end=conclude)
    except KeyboardInterrupt:
        console.print(f"stopped; the same command goes on in {path}", soft_wrap=True)
        raise
    if found.best is None:
        problem = next((trial.problem for trial in found.trials), "no trial ran")
        raise UserError(f"All {len(found.trials)} trials failed, see {path / 'trials.json'}; the first: {problem}")
    if json:
        print((path / "trials.json").read_text(encoding="utf-8"), end="")
        return
    _show(found)


def _command() -> str:
    """The command line as it was typed, for the recipe; empty where another program asks."""
    import sys

    return shlex.join(["unisono", *sys.argv[1:]]) if sys.argv[1:2] == ["tune"] else ""


def _name(plan: Plan, reference: str, method: str | None) -> str:
    """The name of a search's directory: method and data set, or the recipe, and the method where one is chosen."""
    from unisono.tune_recipe import recipe_name

    if plan.layered.is_method:
        return recipe_name(plan.config)
    file = Path(reference)
    recipe = file.stem if file.suffix == ".toml" else reference.replace("/", "-")
    return recipe if method is None else f"{recipe}-{Path(method).stem}"


def _show(found: Tuning) -> None:
    console = make_console()
    console.print(_table(found))
    if found.best is not None and found.best.encoder_score is None:
        console.print("\nnote: the score is that of the encoder's features, because the method has no projector.")
    if found.correlation is not None:
        console.print(f"\nR = {found.correlation:.2f} between score and kNN accuracy; labels have chosen nothing.")
    console.print(f"\nRecipe: {found.recipe}; picture: {found.directory / 'tuning.png'}", soft_wrap=True)
    console.print(f"Run it: unisono run {shlex.quote(str(found.recipe))}", soft_wrap=True)


def _table(found: Tuning) -> Table:
    keys = list(found.trials[0].values) if found.trials else []
    labelled = any(trial.knn is not None for trial in found.trials)
    columns = [*(key.rpartition(".")[2] for key in keys), "score", *(["knn"] if labelled else [])]
    rows = [
        [
            *(str(trial.values[key]) for key in keys),
            "failed" if trial.score is None else decimal(trial.score),
            *([decimal(trial.knn)] if labelled else []),
        ]
        for trial in found.trials
    ]
    return make_table(columns, rows, right=columns)
