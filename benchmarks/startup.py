"""Start-up: the help text and the import of the package."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.tables import Table

REPEATS = 5


def tables() -> list[Table]:
    """Time the commands, in turn."""
    program = str(Path(sys.executable).with_name("unisono"))
    commands = {
        "unisono --help": [program, "--help"],
        "import unisono": [sys.executable, "-c", "import unisono"],
        "import unisono; unisono.run": [sys.executable, "-c", "import unisono; unisono.run"],
        "import torch, for comparison": [sys.executable, "-c", "import torch"],
    }
    rounds = [{name: _seconds_of(command) for name, command in commands.items()} for _ in range(REPEATS)]
    rows = [[name, f"{median(times[name] for times in rounds):.2f}"] for name in commands]
    return [Table("Commands", f"Seconds, median of {REPEATS} interleaved repeats.", ["command", "s"], rows)]


def _seconds_of(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - start
