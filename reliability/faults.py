"""``make faults``: every fault at every operation of every scenario."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from reliability.disk import FAULTS, Fault
from reliability.scenarios import SCENARIOS
from reliability.sweep import Scenario, Swept, every, lines, sweep


def faults(step: int = 1, jobs: int = 2) -> int:
    """Sweep every fault over every scenario and print what was found; return the exit code.

    Args:
        step: sweep each n-th operation.
        jobs: sweeps at a time.
    """
    pairs = [(number, fault, step) for number in range(len(SCENARIOS)) for fault in FAULTS]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        results = pool.starmap(one, pairs, chunksize=1)
    print("\n".join(lines(results)))
    return 1 if any(result.different for result in results) else 0


def one(number: int, fault: Fault, step: int) -> Swept:
    """Sweep one fault over one scenario; what went wrong stays on the disk."""
    scratch = Path(tempfile.mkdtemp(prefix="unisono-faults-"))
    scenario = SCENARIOS[number]()
    with (scratch / "warm.log").open("w") as log, redirect_stdout(log):
        warm_up(scenario, scratch / "warm" / "root")
    swept = sweep(scenario, fault, scratch, every(step))
    print(swept.line(), f"  {scratch}" if swept.different else "", flush=True)
    if not swept.different:
        shutil.rmtree(scratch)
    return swept


def warm_up(scenario: Scenario, root: Path) -> None:
    """Do the work once in this process, so that its forks find everything imported."""
    root.mkdir(parents=True)
    scenario.prepare(root)
    scenario.act(root)
