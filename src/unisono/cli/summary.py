"""Summary at the end of a run: its probes and its directory."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Any

from unisono.cli.run_progress import duration, probes_of
from unisono.cli.tables import decimal, floor_table, make_console, make_table, megabytes, probe_table
from unisono.loaded import LoadedRun
from unisono.runs.directory import RunDirectory

if TYPE_CHECKING:
    from rich.console import Console


PAGES = {"report.html": "Report", "gallery.html": "Clusters and their images"}
"""Pages of a run, and what each shows."""


def summarise(run: LoadedRun, *, quiet: bool, json: bool) -> None:
    """Print a table and a line, or one JSON object, or the path alone."""
    if json:
        print(json_format.dumps(as_json(run)))
        return
    if quiet:
        print(run.path)
        return
    console = make_console()
    metrics = run.metrics
    probes = {entry["round"] + 1: results for entry in metrics if (results := probes_of(entry))}
    if probes:
        console.print()
        console.print(probe_table(probes))
        print_floors(console, run.directory, probes[max(probes)])
    down, up = (sum(entry[key] for entry in metrics) for key in ("bytes_down", "bytes_up"))
    seconds = sum(
        entry["seconds"]["round"] + entry["seconds"].get("probe", 0.0) for entry in run.directory.logs["timings"].read()
    )
    rounds = "1 round" if run.round == 1 else f"{run.round} rounds"
    console.print(f"\n{rounds} in {duration(seconds)}, {megabytes(down)} down, {megabytes(up)} up.")
    console.print(f"Saved in {run.path}", soft_wrap=True)
    for page, what in PAGES.items():
        if (run.path / page).is_file():
            console.print(f"{what}: {run.path / page}", soft_wrap=True)


def print_floors(console: Console, directory: RunDirectory, probes: dict[str, float]) -> None:
    """Print the last probes beside the floors, and whether the encoder beats them; nothing where none were measured."""
    from unisono.evaluation.floors import verdict
    from unisono.evaluation.truth import NUMBERS, tell

    floors = directory.floors
    rows = {**floors, "this run": probes}
    truth = tell(probes, floors)
    if truth.sentences or truth.warnings:
        numbers = [[name, *(decimal(scores.get(name)) for scores in rows.values())] for name in NUMBERS if name in probes]
        console.print()
        console.print(make_table(["without labels", *rows], numbers, right=list(rows)))
        for sentence in (*truth.sentences, *(f"warning: {warning}" for warning in truth.warnings)):
            console.print(f"\n{sentence}", soft_wrap=True)
        rows = {row: {name: value for name, value in scores.items() if name not in NUMBERS} for row, scores in rows.items()}
    if not any(rows["this run"].keys() & rows[name].keys() for name in floors):
        return
    above, sentence = verdict(probes, floors)
    console.print()
    console.print(floor_table(rows))
    if sentence:
        console.print(f"\n{sentence if above else f'warning: {sentence}'}")


def as_json(run: LoadedRun) -> dict[str, Any]:
    """Return the run's method, data, seed and last metrics."""
    config, metrics = run.config, run.metrics
    return {
        "run": str(run.path),
        "method": config.method_name,
        "dataset": config.data.dataset,
        "seed": config.run.seed,
        "rounds": run.round,
        "metrics": metrics[-1] if metrics else {},
        "floors": run.directory.floors,
    }
