"""``unisono study``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unisono.cli import options
from unisono.cli.error_output import INTERRUPTED
from unisono.cli.tables import make_console, make_table

if TYPE_CHECKING:
    from rich.console import Console

    from unisono.studies.grid import Cell
    from unisono.studies.results import Results
    from unisono.studies.study import Study

FAILED = 1
RUNS = Path("runs")
TUNING = Path("tuning")


def study(
    reference: options.Study,
    scale: Annotated[str | None, typer.Option(help="mini, small, long or paper; default: the smallest it has.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run this variant or setting only; repeatable.", metavar="NAME")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Such as 0,1,2 or 0-4; default: the study's.")] = None,
    settings: options.Overrides = None,
    directory: Annotated[Path, typer.Option(help="Where the study's directory goes; default runs.", show_default=False)] = RUNS,
    name: Annotated[str | None, typer.Option(help="Name of that directory; default: the study's.")] = None,
    jobs: Annotated[
        int,
        typer.Option(
            help="Runs at a time, in one process each; default: one run on all cores.", metavar="N", show_default=False
        ),
    ] = 1,
    no_reuse: Annotated[
        bool, typer.Option("--no-reuse", help="Run every cell, even if another study has the same run.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and run nothing.")] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Make one step of every cell; show its memory and the time that it would take.")
    ] = False,
    tune: Annotated[
        int | None,
        typer.Option(
            metavar="ROUNDS", help="Choose the learning rate of every variant without labels, by trials of so many rounds."
        ),
    ] = None,
    config: Annotated[bool, typer.Option("--config", help="With --dry-run: show the options of every run.")] = False,
    json: options.Json = False,
) -> None:
    """Run a grid of variants, settings and seeds.

    STUDY is a .toml file, or a name that 'unisono list studies' shows. The same command again keeps finished runs, continues
    stopped ones, and draws tables and figures anew. Runs that another study in the directory has made with the same settings
    are copied, unless the study measures time or a setting names a file.

    Example: unisono study orchestra-figure-5 --dry-run
    """
    import json as json_format
    from dataclasses import replace

    from unisono.studies.grid import check_cells, make_cells, select
    from unisono.studies.output import as_json
    from unisono.studies.results import collect
    from unisono.studies.reuse import find_reusable_runs, is_timed
    from unisono.studies.runner import check_same
    from unisono.studies.study import read_study

    _check(config=config, dry_run=dry_run, json=json, rehearse=rehearse, tune=tune, jobs=jobs)
    chosen = read_study(reference, scale)
    chosen = chosen if name is None else replace(chosen, directory=name)
    overrides = [*(["engine.workers=0"] if jobs > 1 else []), *(settings or ())]
    everything = make_cells(chosen, directory, seeds=_parse_seeds(seeds), overrides=overrides)
    cells = select(everything, chosen, only or ())
    if rehearse:
        from unisono.cli.study_rehearsal import rehearse_study

        rehearse_study(chosen, cells, everything, jobs, as_json=json)
        return
    check_cells(cells, chosen.config.scale)
    if tune is not None:
        from unisono.cli.study_tuning import tune_study

        tune_study(chosen, cells, tune, TUNING if directory == RUNS else directory, as_json=json)
        return
    if config:
        _print_configs(cells)
        return
    check_same(everything)
    console = make_console()
    console.quiet = json
    introduce(console, chosen, cells)
    reusable = {} if no_reuse or is_timed(chosen) else find_reusable_runs(cells, directory)
    if dry_run:
        _show_cells(console, cells, reusable)
        failures: dict[Cell, str] = {}
    else:
        _copy_runs(console, reusable)
        given: dict[str, Sequence[str | None]] = {
            "--scale": [scale],
            "--seeds": [seeds],
            "--name": [name],
            "--only": only or [],
            "--set": settings or [],
        }
        given |= {"--directory": [str(directory)] if directory != RUNS else [], "--jobs": [str(jobs)] if jobs > 1 else []}
        words = [word for option, values in given.items() for value in values if value is not None for word in (option, value)]
        command = shlex.join(["unisono", "study", reference, *words])
        failures = _run(console, chosen, everything, cells, directory / chosen.directory, command, jobs)
    results = collect(chosen, everything, failures)
    if json:
        print(json_format.dumps(as_json(results)))
    elif not dry_run:
        _show(console, results, directory / chosen.directory)
    if failures:
        raise typer.Exit(FAILED)


def _check(*, config: bool, dry_run: bool, json: bool, rehearse: bool, tune: int | None, jobs: int) -> None:
    """Refuse flags that do not go together."""
    from unisono.core.errors import UserError

    if config and not dry_run:
        raise UserError("--config shows what would run: give --dry-run too.")
    if config and json:
        raise UserError("--config prints TOML and --json prints JSON: give one of the two.")
    if rehearse and dry_run:
        raise UserError("--dry-run runs nothing and --rehearse makes one step of every cell: give one of the two.")
    if tune is not None and (dry_run or rehearse):
        raise UserError("--tune runs trials, --dry-run and --rehearse run none: give one of the three.")
    if tune is not None and tune < 1:
        raise UserError(f"--tune takes the rounds of a trial, at least 1, got {tune}.")
    if jobs < 1:
        raise UserError(f"--jobs must be at least 1, got {jobs}.")


def _run(
    console: Console, study: Study, everything: list[Cell], cells: list[Cell], path: Path, command: str, jobs: int
) -> dict[Cell, str]:
    """Run what is left, and write numbers down after every run and pictures at the end."""
    from unisono.cli.study_progress import StudyProgress
    from unisono.engines.devices import threads
    from unisono.studies.output import write_numbers, write_pictures
    from unisono.studies.results import collect
    from unisono.studies.runner import run_cells, worker_processes

    failures: dict[Cell, str] = {}

    def write(cell: Cell, reason: str) -> None:
        failures.update({cell: reason} if reason else {})
        write_numbers(collect(study, everything, failures), path)

    try:
        with StudyProgress(cells, study, console, after=write, jobs=jobs) as progress:
            if jobs == 1:
                run_cells(cells, progress)
            else:
                with threads(1), worker_processes(cells, jobs - 1):
                    run_cells(cells, progress)
                run_cells(
                    [cell for cell in cells if cell not in failures], progress
                )  # failed in a worker process, or had to wait
    except KeyboardInterrupt:
        print(f"stopped; continue with the same command: {command}", file=sys.stderr, flush=True)
        raise typer.Exit(INTERRUPTED) from None
    results = collect(study, everything, failures)
    write_numbers(results, path)
    try:
        write_pictures(results, path, command)
    except Exception as error:  # hours of runs are not lost to a picture
        console.print(f"note: the figure or the report could not be drawn: {type(error).__name__}: {error}", soft_wrap=True)
    return failures


def introduce(console: Console, study: Study, cells: list[Cell]) -> None:
    """Print title and claim of a study, and how many runs it has."""
    from unisono.report.overview import plural

    config = study.config
    console.print(config.title, soft_wrap=True)
    if config.claim:
        console.print(f"claim: {config.claim}", soft_wrap=True)
    facts = [f"{config.scale} scale", config.source, plural(len(cells), "run"), config.cost]
    console.print("; ".join(filter(None, facts)) + "\n", soft_wrap=True)


def _copy_runs(console: Console, reusable: dict[Cell, Path]) -> None:
    from unisono.core.errors import UserError
    from unisono.report.overview import plural
    from unisono.studies.reuse import copy_run

    copied = []
    for cell, source in reusable.items():
        try:
            copy_run(cell, source)
            copied.append(_origin(source))
        except UserError as error:
            console.print(f"note: {source} is not copied, {cell.title} runs instead: {error}\n", soft_wrap=True)
    if copied:
        origins = ", ".join(dict.fromkeys(copied))
        are = "is" if len(copied) == 1 else "are"
        console.print(f"{plural(len(copied), 'run')} with the same settings {are} copied from {origins}\n", soft_wrap=True)


def _origin(source: Path) -> str:
    """Return the study that a run belongs to, or a run of its own."""
    return str(source.parent if (source.parent / "results.json").is_file() else source)


def _print_configs(cells: list[Cell]) -> None:
    """Print the options of the first seed of every cell, each with its source."""
    from unisono.cli.config import render

    first = {(cell.variant, cell.setting): cell for cell in reversed(cells)}
    for cell in (cell for cell in cells if first[cell.variant, cell.setting] is cell):
        print(f"# {cell.title}\n{render(cell.layered())}")


def _show_cells(console: Console, cells: list[Cell], reusable: dict[Cell, Path]) -> None:
    from unisono.studies.runner import status_of

    states = [f"in {_origin(reusable[cell])}" if cell in reusable else str(status_of(cell.path)) for cell in cells]
    rows = [[cell.variant, cell.setting, str(cell.seed), state] for cell, state in zip(cells, states, strict=True)]
    console.print(make_table(["variant", "setting", "seed", "state"], rows, right=["seed"]))


def _show(console: Console, results: Results, path: Path) -> None:
    from unisono.studies.output import small_print, verdicts_of
    from unisono.studies.tables import study_table
    from unisono.studies.verdict_text import our_effect, verdict_words

    for metric in results.study.config.metrics:
        made = study_table(results, metric)
        console.print(f"\n{metric}")
        rows = [[cell.replace(" [", "\n[") for cell in row] for row in made.rows]
        console.print(make_table(made.heads, rows, right=made.heads[1:]))
    console.print("\n" + small_print(results), soft_wrap=True)
    if results.study.config.note:
        console.print(results.study.config.note, soft_wrap=True)
    for verdict in verdicts_of(results):
        ours = our_effect(verdict)
        console.print(f"claim: {verdict.claim.text} {ours + ': ' if ours else ''}{verdict_words(verdict)}", soft_wrap=True)
    for cell_result in results.cell_results:
        if cell_result.reason:
            console.print(f"failed: {cell_result.cell.title}: {' '.join(cell_result.reason.split())}", soft_wrap=True)
    console.print(f"Tables, figure and report: {path}", soft_wrap=True)


def _parse_seeds(text: str | None) -> list[int] | None:
    from unisono.core.errors import UserError

    if text is None:
        return None
    try:
        parts = [[int(number) for number in part.split("-", 1)] for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"--seeds takes numbers such as 0,1,2 or 0-4, got {text!r}.") from error
    seeds = [seed for part in parts for seed in range(part[0], part[-1] + 1)]
    if not seeds:
        raise UserError(f"--seeds names no seed: {text!r}.")
    return list(dict.fromkeys(seeds))
