"""Start-up: the help text and the import of the package."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

REPEATS = 5


def seconds_of(command: list[str]) -> float:
    """Median wall-clock time of a command."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    return median(times)


def report() -> None:
    """Prints the times."""
    program = str(Path(sys.executable).with_name("unisono"))
    print(f"unisono --help              {seconds_of([program, '--help']):.2f} s")
    print(f"import unisono              {seconds_of([sys.executable, '-c', 'import unisono']):.2f} s")
    print(f"import torch                {seconds_of([sys.executable, '-c', 'import torch']):.2f} s")
    print(f"import unisono; unisono.run {seconds_of([sys.executable, '-c', 'import unisono; unisono.run']):.2f} s")


if __name__ == "__main__":
    report()
