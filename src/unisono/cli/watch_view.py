"""A run in a terminal: bars, curves in letters, clients, time left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from unisono.cli.run_progress import duration
from unisono.cli.tables import decimal, megabytes
from unisono.report.curves import by_name, is_loss
from unisono.report.status import run_status
from unisono.report.timings import total_seconds
from unisono.runs.directory import RunDirectory
from unisono.runs.evaluation import PREFIX

LEVELS = "▁▂▃▄▅▆▇█"
MOST_CURVES = 12
NAME_WIDTH = 22


def watch_view(directory: RunDirectory, width: int) -> RenderableType:
    """Return a view of the run so far: bar, curves, clients and status.

    Args:
        directory: of the run.
        width: columns of the terminal.
    """
    status = run_status(directory)
    metrics, timings = directory.logs["metrics"].read(), directory.logs["timings"].read()
    failures = directory.logs["failures"].read()
    tree = directory.config_tree
    head = f"{directory.path.name}: {tree['method']['name']} on {tree['data']['dataset']}, {status.word}"
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    left = seconds_left(timings, status.num_rounds) if status.word == "running" else None
    grid.add_row(
        f"rounds {status.rounds_done}/{status.num_rounds}",
        ProgressBar(total=status.num_rounds, completed=status.rounds_done),
        "" if left is None else f"{duration(left)} left",
    )
    lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in _curves(metrics, width)]
    words = [Text(f"\n{_clients(metrics, len(failures))}")] if metrics else []
    if status.sentence:
        words.append(Text(f"\n{status.sentence}"))
    return Group(Text(head, style="bold", no_wrap=True, overflow="ellipsis"), grid, Text(), *lines, *words)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a letter per value, or per few neighbours where there are many; the lowest is a thin line, the highest a block.

    Args:
        values: in order; those that are not finite are left out.
        width: at most this many letters.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    step = -(-len(finite) // width)
    parts = [finite[first : first + step] for first in range(0, len(finite), step)]
    means = [sum(part) / len(part) for part in parts]
    low, span = min(means), max(means) - min(means)
    return "".join(LEVELS[round((mean - low) / span * (len(LEVELS) - 1)) if span > 0 else 0] for mean in means)


def seconds_left(timings: Sequence[Mapping[str, Any]], num_rounds: int) -> float | None:
    """Return the seconds that the rest takes at the mean pace so far, None before the first round is done."""
    if not timings:
        return None
    return total_seconds(timings) / len(timings) * max(0, num_rounds - len(timings))


def _curves(metrics: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return a line per loss and probe: name, curve, last value and the round it is of."""
    named = by_name(metrics)
    shown = {name: values for name, values in named.items() if is_loss(name) or name.startswith(PREFIX)}
    room = max(8, width - NAME_WIDTH - 26)
    lines = []
    for name, values in list(shown.items())[:MOST_CURVES]:
        round, last = list(values.items())[-1]
        curve = sparkline(list(values.values()), room)
        lines.append(f"{name.removeprefix(PREFIX):<{NAME_WIDTH}.{NAME_WIDTH}} {curve:<{room}} {decimal(last):>9} round {round}")
    return lines


def _clients(metrics: Sequence[Mapping[str, Any]], num_failures: int) -> str:
    last = metrics[-1]
    moved = sum(entry["bytes_down"] + entry["bytes_up"] for entry in metrics)
    failed = f", {num_failures} failed so far" if num_failures else ""
    return (
        f"{last['answered']} of {last['asked']} clients answered in round {last['round'] + 1}{failed}; {megabytes(moved)} moved"
    )
