"""``unisono study --tune``: the same search without labels for every variant of a study."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from unisono.cli.study import FAILED
from unisono.cli.tables import make_console, make_table
from unisono.core.errors import UserError
from unisono.report.overview import plural
from unisono.studies.grid import Cell
from unisono.studies.study import Study, slug
from unisono.tune import Tuning, tune
from unisono.tune_plan import LEARNING_RATES, make_plan

RATE = "training.learning_rate"


def tune_study(study: Study, cells: Iterable[Cell], rounds: int, directory: Path, *, as_json: bool) -> None:
    """Search for the learning rate of every variant; exit with 1 if a search failed.

    All searches have the same grid and rounds. A variant is searched at the first setting of each recipe that it runs.

    Args:
        study: theirs.
        cells: those that the user chose.
        rounds: of a trial.
        directory: where searches go.
        as_json: print JSON alone.
    """
    console = make_console()
    console.quiet = as_json
    found: list[dict[str, Any]] = []
    for cell in first_cells(cells):
        name = cell.title.rpartition(", seed ")[0]
        row: dict[str, Any] = {"variant": cell.variant, "setting": cell.setting, "recipe": cell.reference}
        try:
            path = directory / study.directory / "_".join([slug(cell.variant), slug(cell.setting)])
            row |= _outcome(search(cell, rounds, path)) if has_rate(cell) else {"note": "its method has no learning rate"}
        except UserError as error:
            row["problem"] = str(error)
        found.append(row)
        chosen = f"{RATE} = {row['rate']:g}, score {row['score']:.4f}" if "rate" in row else row.get("note") or row["problem"]
        console.print(f"{name}: {chosen}", soft_wrap=True)
    if as_json:
        print(json.dumps({"study": study.name, "scale": study.config.scale, "rounds": rounds, "searches": found}))
    else:
        rows = [
            [row["variant"], row["setting"], *map(_text, (row.get("rate"), row.get("score"), row.get("R")))] for row in found
        ]
        console.print()
        console.print(make_table(["variant", "setting", "rate", "score", "R"], rows, right=["rate", "score", "R"]))
        console.print(
            f"\nEvery search: the rates {', '.join(f'{rate:g}' for rate in LEARNING_RATES['sgd'])} (a tenth for Adam), "
            f"trials of {plural(rounds, 'round')}. Labels have chosen nothing; R is the correlation of score and kNN accuracy. "
            "Write the rates into the recipe, below [methods.NAME], or into 'set' of a variant.",
            soft_wrap=True,
        )
    if any("problem" in row for row in found):
        raise typer.Exit(FAILED)


def first_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Return the first trained cell of every variant and recipe."""
    found: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        if not cell.untrained:
            found.setdefault((cell.variant, cell.reference), cell)
    return list(found.values())


def has_rate(cell: Cell) -> bool:
    """Return whether the method of a cell takes steps."""
    return hasattr(cell.config().method_class, "loss")


def search(cell: Cell, rounds: int, path: Path) -> Tuning:
    """Return the finished search of a cell's learning rate.

    Args:
        cell: whose options are searched.
        rounds: of a trial.
        path: the directory of the search; an earlier one is continued.
    """
    if cell.needs:
        raise UserError(f"it starts from the run {cell.needs[0].name}: finish that and tune with its path")
    grid: Mapping[str, Sequence[float]] = {RATE: LEARNING_RATES[cell.config().training.optimizer]}
    return tune(make_plan(cell.reference, cell.layers(), grid, rounds=rounds), path)


def _outcome(searched: Tuning) -> dict[str, Any]:
    best = searched.best
    if best is None:
        return {"problem": next((trial.problem for trial in searched.trials), "no trial ran")}
    trials = [{"rate": trial.values[RATE], "score": trial.score, "knn": trial.knn} for trial in searched.trials]
    return {"rate": best.values[RATE], "score": best.score, "R": searched.correlation, "trials": trials}


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
