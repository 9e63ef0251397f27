"""``unisono show``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from unisono.cli import options
from unisono.cli.tables import decimal, make_console, make_table, megabytes, probe_table, thinned

if TYPE_CHECKING:
    from rich.table import Table

    from unisono.runs.directory import RunDirectory

MOST_ROWS = 10


def show(run: options.Run) -> None:
    """Show what was run and what came of it.

    RUN is a run directory.

    Example: unisono show runs/demo
    """
    from unisono.cli.run_progress import probes_of
    from unisono.cli.summary import print_floors
    from unisono.config import resolve
    from unisono.report.status import run_status
    from unisono.runs.directory import RunDirectory

    directory = RunDirectory.open(run)
    tree = resolve(directory.config_tree).as_tree()
    logs, damaged = directory.intact_logs()[0], directory.damage()
    metrics = logs["metrics"]
    console = make_console()
    status = run_status(directory)
    console.print(f"{run}: {status.word}, {status.rounds_done} of {status.num_rounds} rounds done\n", soft_wrap=True)
    if status.sentence:
        console.print(f"{status.sentence}\n", soft_wrap=True)
    for sentence in damaged:
        console.print(f"warning: {sentence} It is left out here.\n", soft_wrap=True)
    console.print(_facts(directory, tree, logs))
    if metrics:
        console.print()
        console.print(_rounds(metrics))
    probes = {entry["round"] + 1: results for entry in metrics if (results := probes_of(entry))}
    if probes:
        console.print()
        console.print(probe_table(probes))
        print_floors(console, directory, probes[max(probes)])
    for entry in logs["notes"][-MOST_ROWS:]:
        when = "" if entry["round"] is None else f"round {entry['round'] + 1}: "
        console.print(f"\nnote: {when}{entry['note']}")
    console.print(f"\nfiles: {', '.join(_files(directory))}")


def _facts(directory: RunDirectory, tree: dict[str, Any], logs: dict[str, list[dict[str, Any]]]) -> Table:
    """Return the facts of the run's report, and what it sent and lost."""
    from unisono.report.files import ReportFiles
    from unisono.report.overview import what_was_run

    about = ReportFiles(directory).read("about") or {}
    failures = logs["failures"]
    down, up = (sum(entry[key] for entry in logs["metrics"]) for key in ("bytes_down", "bytes_up"))
    rows = [
        *what_was_run(tree, about, of_federation=directory.of_federation)["pairs"],
        ["communication", f"{megabytes(down)} down, {megabytes(up)} up"],
        ["failures", f"{len(failures)}, the last: {_failure(failures[-1])}" if failures else "none"],
    ]
    return make_table(["", " "], rows, heads=False)


def _failure(entry: dict[str, Any]) -> str:
    return f"round {entry['round'] + 1}, phase {entry['phase']}, client {entry['client']}: {entry['reason']}"


def _rounds(metrics: list[dict[str, Any]]) -> Table:
    """Return metrics over rounds, every few rounds of a long run."""
    left_out = {"round", "asked", "answered", "bytes_down", "bytes_up"}
    counts = Counter(name for entry in metrics for name in entry if name not in left_out and not name.startswith("probe."))
    names = [name for name, _ in counts.most_common(5)]  # those of most rounds, in the order in which they came
    rows = []
    for position in thinned(range(len(metrics)), MOST_ROWS):
        entry = metrics[position]
        clients = f"{entry['answered']}/{entry['asked']}"
        rows.append([str(entry["round"] + 1), clients, *(decimal(entry.get(name)) for name in names)])
    columns = ["round", "clients", *names]
    return make_table(columns, rows, right=columns)


def _files(directory: RunDirectory) -> list[str]:
    """Return the files in the directory with their sizes."""
    found = []
    for path in sorted(directory.path.iterdir()):
        if path.name.startswith("."):
            continue
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else path.lstat().st_size
        found.append(
            f"{path.name}{'/' if path.is_dir() else ''} ({megabytes(size) if size >= 1e5 else f'{size / 1e3:.1f} kB'})"
        )
    return found
