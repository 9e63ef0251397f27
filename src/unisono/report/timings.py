"""Charts and tables of where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unisono.report.blocks import Block, Number, columns, table

MOST_COLUMNS = 100
NOT_PARTS = ("round", "clients", "exchange_slowest")
"""Timings that are no part of a round's length: its whole, and sums or extremes over clients that work side by side."""
AFTER_ROUND = ("probe", "map")


def timing_blocks(timings: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return seconds by phase: a column per round, or per few rounds of a long run, and the sums.

    Args:
        timings: ``timings.jsonl``.
    """
    if not timings:
        return []
    rows = [parts_of(entry["seconds"]) for entry in timings]
    names = list(dict.fromkeys(name for row in rows for name in row))
    step = -(-len(rows) // MOST_COLUMNS)
    groups, values = [], []
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        numbers = [timings[first]["round"] + 1, timings[first + len(part) - 1]["round"] + 1]
        groups.append(str(numbers[0]) if step == 1 else f"{numbers[0]} to {numbers[1]}")
        values.append([sum(row.get(name, 0.0) for row in part) for name in names])
    totals = {name: sum(row.get(name, 0.0) for row in rows) for name in names}
    whole = sum(totals.values())
    cells: list[list[str | Number]] = [
        [name, total, total / len(rows), f"{total / max(whole, 1e-12):.0%}"] for name, total in totals.items()
    ]
    worked = sum(entry["seconds"].get("clients", 0.0) for entry in timings)
    note = f"{whole:,.1f} s in all. Clients worked {worked:,.1f} s, side by side."
    return [
        columns("Seconds by phase", "round", "seconds", groups, names, values),
        table("Sums", ["phase", "seconds", "seconds per round", "share"], cells, note=note),
    ]


def parts_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return a round's seconds by phase; what no phase accounts for is called server."""
    parts = {name: value for name, value in seconds.items() if name not in NOT_PARTS}
    phases = sum(value for name, value in parts.items() if name not in AFTER_ROUND)
    after = {name: parts.pop(name) for name in AFTER_ROUND if name in parts}
    return {**parts, "server": max(0.0, seconds.get("round", phases) - phases), **after}


def total_seconds(timings: Sequence[Mapping[str, Any]]) -> float:
    """Return all that was logged."""
    return sum(sum(parts_of(entry["seconds"]).values()) for entry in timings)
