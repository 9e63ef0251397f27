"""Summary at the end of a run: its probes and its directory."""

from __future__ import annotations

import json as json_format
from typing import Any

from unisono.cli.run_progress import duration, probes_of
from unisono.cli.tables import make_console, megabytes, probe_table
from unisono.loaded import LoadedRun


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
    down, up = (sum(entry[key] for entry in metrics) for key in ("bytes_down", "bytes_up"))
    seconds = sum(
        entry["seconds"]["round"] + entry["seconds"].get("probe", 0.0) for entry in run.directory.logs["timings"].read()
    )
    console.print(f"\n{run.round} rounds in {duration(seconds)}, {megabytes(down)} down, {megabytes(up)} up.")
    console.print(f"Saved in {run.path}", soft_wrap=True)


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
    }
