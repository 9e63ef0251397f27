"""Tables of a few columns for a terminal of 80, and numbers as people read them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

TERMINAL, GAP = 80, 3
"""Columns of letters that a table may fill, and between two of its columns; names above numbers break where it is wider."""
MOST_ROUNDS = 6
"""Columns of a probe table that fit beside the names."""
BESIDE_ACCURACY = {"nmi", "ari", "kmeans-nmi", "kmeans-ari", "kmeans-balance"}
"""Scores of clusters that a table of floors leaves out; it has their accuracy."""


def make_console() -> Console:
    """Return the terminal, or a file without colours and control characters."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    heads: bool = True,
    whole: Iterable[str] = (),
) -> Table:
    """Return a table without frame.

    Args:
        columns: heads; an empty one stands over names.
        rows: cells.
        right: the columns of numbers.
        heads: whether the heads are shown.
        whole: the columns whose lines are never broken.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=heads)
    numbers, unbroken, rows = set(right), set(whole), list(rows)
    wide = sum(max(map(len, cells)) + GAP for cells in zip(columns, *rows, strict=True)) - GAP > TERMINAL
    for column in columns:
        head = re.sub("([-_])", r"\1\n", column) if wide and column in numbers else column
        table.add_column(head, justify="right" if column in numbers else "left", overflow="fold", no_wrap=column in unbroken)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def probe_table(probes: Mapping[int, Mapping[str, float]]) -> Table:
    """Return probes by the number of rounds after which they were made: a row per probe, the latest rounds as columns.

    Args:
        probes: results by name, by number of rounds.
    """
    rounds = thinned(sorted(probes), MOST_ROUNDS)
    names = list(dict.fromkeys(name for results in probes.values() for name in results))
    heads = [f"round {round}" if number == 0 else str(round) for number, round in enumerate(rounds)]
    rows = [[name, *(decimal(probes[round].get(name)) for round in rounds)] for name in names]
    return make_table(["probe", *heads], rows, right=heads)


def floor_table(rows: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a row for each floor and each run, a column for each probe that any floor has.

    Args:
        rows: scores by probe, by the name of the floor or run.
    """
    from unisono.evaluation.floors import FLOORS

    shown = {name for floor in FLOORS for name in rows.get(floor, {})} - BESIDE_ACCURACY
    names = list(dict.fromkeys(name for row, scores in rows.items() if row not in FLOORS for name in scores if name in shown))
    return make_table(["", *names], [[row, *(decimal(rows[row].get(name)) for name in names)] for row in rows], right=names)


def thinned(items: Sequence[int], most: int) -> list[int]:
    """Return at most this many items: the first, the last and evenly between them."""
    if len(items) <= most:
        return list(items)
    return [items[round(number * (len(items) - 1) / (most - 1))] for number in range(most)]


def decimal(value: float | None) -> str:
    """Return a number with four decimals, or as many digits as a large or tiny number needs."""
    if value is None:
        return ""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"


def megabytes(num_bytes: float) -> str:
    """Return a size such as ``1.2 MB``."""
    return f"{num_bytes / 1e6:,.1f} MB"
