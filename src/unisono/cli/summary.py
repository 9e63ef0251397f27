"""Summary at the end of a run: its probes and its directory."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Any

from unisono.cli.run_progress import duration, probes_of
from unisono.cli.tables import floor_table, make_console, megabytes, probe_table
from unisono.loaded import LoadedRun
from unisono.runs.directory import RunDirectory

if TYPE_CHECKING:
    from rich.console import Console


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


def print_floors(console: Console, directory: RunDirectory, probes: dict[str, float]) -> None:
    """Print the last probes beside the floors, and whether the encoder beats them; nothing where none were measured."""
    from unisono.evaluation.floors import verdict

    floors = directory.floors
    if not any(probes.keys() & scores.keys() for scores in floors.values()):
        return
    above, sentence = verdict(probes, floors)
    console.print()
    console.print(floor_table({**floors, "this run": probes}))
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
