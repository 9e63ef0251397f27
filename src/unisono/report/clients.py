"""Table of clients: samples, rounds, loss, failures, bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from unisono.report.blocks import Block, Number, table
from unisono.report.curves import is_loss

MOST_ROWS = 1000
MOST_FAILURES = 200
Log = Sequence[Mapping[str, Any]]


def client_table(log: Log, failures: Log, split: Mapping[str, Any] | None, client_names: Sequence[str]) -> Block | None:
    """Return a row per client, of those that were never asked as well; None where nothing is known of any.

    Args:
        log: ``clients.jsonl``.
        failures: ``failures.jsonl``.
        split: ``report/split.json``, None where the run left none.
        client_names: names of the clients; empty where they have none.
    """
    parts: dict[int, dict[str, Any]] = {}
    for client, size in enumerate(split["sizes"] if split else ()):
        parts[client] = _part(size)
    for entry in log:
        for answer in entry["clients"]:
            part = parts.setdefault(answer["client"], _part(answer["samples"]))
            part["rounds"].add(entry["round"])
            part["down"] += answer["bytes_down"]
            part["up"] += answer["bytes_up"]
            losses = [value for name, value in answer.items() if is_loss(name) and name.rpartition(".")[2] == "loss"]
            part["losses"] += [value for value in losses if value is not None]
    failed = Counter(entry["client"] for entry in failures)
    for client in failed:
        parts.setdefault(client, _part(None))
    if not parts:
        return None
    rows: list[list[str | Number]] = []
    for client in sorted(parts)[:MOST_ROWS]:
        part = parts[client]
        first, last = (part["losses"][0], part["losses"][-1]) if part["losses"] else (None, None)
        name = client_names[client] if 0 <= client < len(client_names) else client
        rows.append(
            [name, part["samples"], len(part["rounds"]), first, last, failed[client], part["down"] / 1e6, part["up"] / 1e6]
        )
    heads = ["client", "samples", "rounds", "first loss", "last loss", "failures", "MB received", "MB sent"]
    never = sum(not part["rounds"] for part in parts.values())
    note = f"{len(parts):,} clients" + (f", {never:,} of them not asked so far" if never else "")
    note += f"; the first {MOST_ROWS:,} are shown" if len(parts) > MOST_ROWS else ""
    return table("Clients", heads, rows, note=f"{note}. A click on a head sorts.", digits=3)


def failure_table(failures: Log) -> Block | None:
    """Return a table of failures by client, with round and reason; None where no client failed."""
    if not failures:
        return None
    rows: list[list[str | Number]] = [
        [entry["round"] + 1, entry["phase"], entry["client"], " ".join(str(entry["reason"]).split())]
        for entry in failures[-MOST_FAILURES:]
    ]
    note = f"The last {MOST_FAILURES} of {len(failures):,}." if len(failures) > MOST_FAILURES else ""
    screened = sum("aggregation.screen" in str(entry["reason"]) for entry in failures)
    note += f" {screened:,} of all were left out for the length of their update." if screened else ""
    return table("Failures", ["round", "phase", "client", "reason"], rows, note=note)


def _part(samples: int | None) -> dict[str, Any]:
    return {"samples": samples, "rounds": set(), "losses": [], "down": 0, "up": 0}
