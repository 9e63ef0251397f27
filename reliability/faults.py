"""``make faults``: every fault at every operation of every scenario."""

from __future__ import annotations

import copy
import fcntl
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from reliability.disk import FAULTS, Fault
from reliability.scenarios import SCENARIOS
from reliability.sweep import Point, Scenario, Swept, every, lines, sweep
from unisono.core.payload import Payload
from unisono.core.wire import to_bytes
from unisono.engines.embedded import EmbeddedEngine
from unisono.federation.loop import Callback, PhaseResult, PhaseTask
from unisono.runs.evaluation import Evaluator

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where scenarios are played: the shim knows what was synced, so no disk has to."""
POINTS = Path("build/faults")
"""Files of the points that were swept, by scenario and fault: a sweep that was stopped goes on from there."""


def faults(step: int = 1, jobs: int = 2, minutes: int = 0) -> int:
    """Sweep every fault over every scenario and print what was found; return the exit code.

    Args:
        step: sweep each n-th operation.
        jobs: sweeps at a time.
        minutes: stop after these, to go on at the next call; 0 sweeps all, from the beginning.
    """
    if not minutes:
        shutil.rmtree(POINTS, ignore_errors=True)
    POINTS.mkdir(parents=True, exist_ok=True)
    deadline = time.time() + 60 * minutes if minutes else float("inf")
    cheapest_first = [(number, fault) for fault in reversed(FAULTS) for number in reversed(range(len(SCENARIOS)))]
    pairs = [(*pair, step, deadline) for pair in cheapest_first]
    if jobs == 1:
        results = [one(*pair) for pair in pairs]
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            results = pool.starmap(one, pairs, chunksize=1)
    print("\n".join(lines(results)))
    if not all(result.is_whole for result in results):
        print("stopped before the end: the same command goes on")
    return 1 if any(result.different for result in results) else 0


def one(number: int, fault: Fault, step: int, deadline: float) -> Swept:
    """Sweep one fault over one scenario; what went wrong stays on the disk.

    Args:
        number: of the scenario.
        fault: what happens.
        step: sweep each n-th operation.
        deadline: time at which to stop.
    """
    scenario = SCENARIOS[number]()
    file = POINTS / f"{scenario.name}-{fault}.jsonl"
    told = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {at: Point(end, problem) for at, end, problem in (line for line in told if line)}
    is_whole = [] in told
    if is_whole or time.time() > deadline or not lock(file):
        return Swept(scenario.name, fault, known, is_whole)
    warm_up_once(number)
    scratch = Path(tempfile.mkdtemp(prefix="unisono-faults-", dir=MEMORY))

    def goes_on(at: int, point: Point) -> bool:
        with file.open("a") as log:
            log.write(json.dumps([at, *point]) + "\n")
        return time.time() < deadline

    swept = sweep(scenario, fault, scratch, every(step), known, goes_on)
    if swept.is_whole:
        with file.open("a") as log:
            log.write("[]\n")
    print(swept.line(), f"  {scratch}" if swept.different else "", flush=True)
    if not (scratch / "kept").exists():
        shutil.rmtree(scratch)
    return swept


def lock(file: Path) -> bool:
    """Return whether this process may write a file of points; another one may be at it."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT)  # held until the process ends
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return False
    return True


@cache
def remember_once() -> None:
    """Keep what clients and probes compute, by all that they are given: a sweep repeats the same rounds thousands of times."""
    known: dict[tuple[object, ...], Any] = {}

    def ask(self: EmbeddedEngine, task: PhaseTask, callbacks: Sequence[Callback]) -> PhaseResult:
        local = [(client, to_bytes(state)) for client, state in sorted(task.locals.items())]
        routed = [(client, to_bytes(payload)) for client, payload in sorted(task.routed.items())]
        method = self._setup.method
        key = (
            repr((method.config, method.info)),
            repr(task.ctx),
            tuple(task.clients),
            to_bytes(task.broadcast),
            *local,
            *routed,
        )
        if key not in known:
            known[key] = run_phase(self, task, callbacks)
        return copy.deepcopy(known[key])

    def probe(self: Evaluator, server: Payload, round: int, previous: Payload | None = None, layers: Any = None) -> Any:
        key = (to_bytes(server), round, b"" if previous is None else to_bytes(previous))
        if key not in known:
            known[key] = evaluate(self, server, round, previous, layers)
        return dict(known[key])

    def floors(self: Evaluator) -> Any:
        key = ("floors", self._seed, repr((self._method.config, self._method.info, self._config)))
        if key not in known:
            known[key] = measure(self)
        return copy.deepcopy(known[key])

    run_phase, evaluate, measure = EmbeddedEngine.run_phase, Evaluator.__call__, Evaluator.floors
    EmbeddedEngine.run_phase, Evaluator.__call__, Evaluator.floors = ask, probe, floors  # type: ignore[method-assign]


@cache
def warm_up_once(number: int) -> None:
    """Warm this process up for a scenario."""
    remember_once()
    with tempfile.TemporaryDirectory(dir=MEMORY) as scratch, (Path(scratch) / "log").open("w") as log, redirect_stdout(log):
        warm_up(SCENARIOS[number](), Path(scratch) / "warm" / "root")


def warm_up(scenario: Scenario, root: Path) -> None:
    """Do the work once in this process, so that its forks find everything imported."""
    root.mkdir(parents=True)
    scenario.prepare(root)
    scenario.act(root)
