"""``unisono tune``."""

from __future__ import annotations

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
    from unisono.tune import Trial, Tuning, Value


def tune(
    reference: options.Recipe,
    method: options.Method = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,C", help="Values of an option; repeatable. Default: the paper's grid."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds per trial; default: the recipe's, at most 20.")] = None,
    sampler: Annotated[
        str, typer.Option(help="grid: every point; tpe: Optuna's TPE over them; default grid.", show_default=False)
    ] = "grid",
    trials: Annotated[int | None, typer.Option(help="Most trials; default: the grid, or 20 for tpe.")] = None,
    dataset: options.Dataset = None,
    clients: options.NumClients = None,
    alpha: options.Alpha = None,
    workers: Annotated[int | None, typer.Option(help="Processes (engine.workers).")] = None,
    seed: options.Seed = None,
    settings: options.Overrides = None,
    name: Annotated[str | None, typer.Option(help="Of the search's directory; default: the recipe's.")] = None,
    directory: Annotated[Path, typer.Option(help="Where searches go; default tuning.", show_default=False)] = Path("tuning"),
    json: options.Json = False,
) -> None:
    """Choose hyper-parameters without labels.

    One run per trial; the best has the highest Align + 0.2 Unif on the clients' samples. The same command continues a search
    that was stopped. RECIPE|METHOD is as for 'unisono run'.

    Example: unisono tune digits-smoke --rounds 1 --trials 2
    """
    from unisono.cli.progress import Progress
    from unisono.core.errors import UserError
    from unisono.recipes import build_tree
    from unisono.tune import parse_grid
    from unisono.tune import tune as search
    from unisono.tune_plot import describe

    if sampler not in ("grid", "tpe"):
        raise UserError(f"--sampler must be grid or tpe, got {sampler!r}.")
    flags = {"method": method, "dataset": dataset, "clients": clients, "alpha": alpha, "workers": workers, "seed": seed}
    tree = build_tree(reference, flags, settings or ())
    console = make_console()
    console.quiet = json
    number = 0

    def announce(config: Config, values: Mapping[str, Value]) -> Sequence[Callback]:
        nonlocal number
        number += 1
        console.print(f"trial {number}: {describe(values)}", soft_wrap=True)
        return [Progress(config, console, redrawn=False)]

    def conclude(trial: Trial) -> None:
        console.print(trial.problem if trial.score is None else f"score {trial.score:.4f}\n", soft_wrap=True)

    path = directory / (name or _name(reference, method))
    try:
        found = search(
            tree,
            path,
            parse_grid(grid) if grid else None,
            sampler="grid" if sampler == "grid" else "tpe",
            num_trials=trials,
            rounds=rounds,
            on_start=announce,
            on_end=conclude,
        )
    except KeyboardInterrupt:
        console.print(f"stopped; the same command goes on in {path}", soft_wrap=True)
        raise
    if json:
        print((path / "trials.json").read_text(encoding="utf-8"), end="")
        return
    _show(found)


def _name(reference: str, method: str | None) -> str:
    """The name of a search's directory: the recipe, and the method where one is chosen."""
    file = Path(reference)
    recipe = file.stem if file.suffix in (".toml", ".py") else reference.replace("/", "-")
    return recipe if method is None else f"{recipe}-{Path(method).stem}"


def _show(found: Tuning) -> None:
    console = make_console()
    console.print(_table(found))
    if found.correlation is not None:
        console.print(f"\nR = {found.correlation:.2f} between score and kNN accuracy; labels have chosen nothing.")
    if found.best is None:
        console.print("\nNo trial came to an end: see trials.json.")
        return
    console.print(f"\nBest: {found.directory / 'best.toml'}; picture: {found.directory / 'tuning.png'}", soft_wrap=True)


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
