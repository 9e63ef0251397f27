"""The page docs/benchmarks.md: results of all parts, with the machine and the day on which each was measured."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.tables import Table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"
INTRODUCTION = """# Benchmarks

`make bench` measures all of this again on a machine that does nothing else, and writes this page; `python -m benchmarks views
precision` measures parts of it. Every comparison is made in one run, in turn, on the same machine. Times of other
machines differ; ratios hold better.
"""
REMARKS = {
    "resnet": "Memory: each of the two workers holds its networks (45 MB), their sum in shared memory (45 MB) and what the "
    "convolutions need meanwhile (about 75 MB); the parent holds the state, the sums and the broadcast (45 MB each).",
    "engine": "Cause: a client takes as long in the engine as in a bare process (11.7 ms with the small CNN), and a round of "
    "20 takes 12 ms more: 2 ms until the first worker has its clients, 1 ms for the first of them, 3 ms for the sums and "
    "messages of four shards each, 2 ms until the slower worker is done, and 2 ms at the server. Three processes share two "
    "cores here. A client of the ResNet takes twenty times as long.",
    "precision": "Cause: clients take two steps of small images here, and views, norms, the optimiser and the hand-over stay "
    "in fp32. Against fp32 in torch's default format, single steps on this machine gain 1.45 to 2.2 with BatchNorm (1.15 with "
    "ImageNet's stem), and 1.1 to 1.6 with GroupNorm.",
}
"""Causes where something that is wanted was missed, and circumstances, by part."""


def machine() -> str:
    """Return processor, cores, memory and versions in words; no names of hosts or folders."""
    model = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.partition(":") for line in info.read_text().splitlines())
        model = next((value.strip() for name, _, value in lines if name.strip() == "model name"), model)
    found = torch.cpu.get_capabilities()
    abilities = [name for name in ("avx512_bf16", "amx_bf16") if found.get(name)]
    versions = {"Python": platform.python_version()}
    for package in ("torch", "flwr", "ray"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return (
        f"{model}{' with ' + ', '.join(abilities) if abilities else ''}, {os.cpu_count()} cores, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GB of memory; {platform.system()}; "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
    )


def save(part: str, tables: list[Table], order: Iterable[str]) -> None:
    """Keep the results of a part, and write the page of all parts in this order."""
    results = read()
    day = datetime.now(UTC).date().isoformat()
    results[part] = {"machine": machine(), "day": day, "tables": [table.as_json() for table in tables]}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results, order))


def read() -> dict[str, Any]:
    """Return the results that were kept, by part."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}  # type: ignore[no-any-return]


def page(results: dict[str, Any], order: Iterable[str]) -> str:
    """Return the page of these results, part by part in this order."""
    names = [name for name in order if name in results]
    whole = [INTRODUCTION]
    occasions: dict[tuple[str, str], list[str]] = {}
    for name in names:
        occasions.setdefault((results[name]["machine"], results[name]["day"]), []).append(name)
    for (machine, day), parts in occasions.items():
        which = "" if len(occasions) == 1 else f": {', '.join(parts)}"
        whole.append(f"Machine: {machine}. Measured on {day}{which}.\n")
    missing = [name for name in order if name not in results]
    if missing:
        whole.append(f"Not measured on this version: {', '.join(missing)}.\n")
    for name in names:
        whole += [Table(**table).as_markdown() for table in results[name]["tables"]]
        if name in REMARKS:
            whole.append(f"{REMARKS[name]}\n")
    return "\n".join(whole)
