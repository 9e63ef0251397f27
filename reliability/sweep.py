"""A fault at the n-th operation, for every n; after each the work is taken up again, and must end as an undisturbed one."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from reliability.disk import Fault, FaultyDisk
from unisono.core.errors import UserError

REFUSED, FAILED, NOT_FIRED = 3, 4, 5
Outcome = dict[str, bytes]


class Scenario(Protocol):
    """Some work on files, and how it is taken up again."""

    name: str

    def prepare(self, root: Path) -> None:
        """Make what must be there before."""

    def act(self, root: Path) -> None:
        """Do the work during which the fault happens."""

    def recover(self, root: Path) -> None:
        """Do what a user does after it."""

    def outcome(self, root: Path) -> Outcome:
        """Return what must be equal in the end, by name."""


class Point(NamedTuple):
    """How the work ended at a fault, and what was different in the end; nothing if all was equal."""

    end: str
    problem: str


@dataclass
class Swept:
    """Result of one sweep.

    Args:
        scenario: its name.
        fault: what happened at each point.
        points: what came of each operation.
        is_whole: False if the sweep was stopped before the last operation.
    """

    scenario: str
    fault: Fault
    points: dict[int, Point] = field(default_factory=dict)
    is_whole: bool = True

    @property
    def different(self) -> dict[int, str]:
        """Points after which the outcome was another, with the reason."""
        return {at: point.problem for at, point in self.points.items() if point.problem}

    def line(self) -> str:
        """Return one line about it."""
        counts = Counter(point.end for point in self.points.values())
        ends = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        equal = len(self.points) - len(self.different)
        return f"{self.scenario:14} {self.fault:8} {len(self.points):5} points, {equal:5} equal   ({ends})"


def sweep(
    scenario: Scenario,
    fault: Fault,
    scratch: Path,
    points: Callable[[int], Sequence[int]],
    known: Mapping[int, Point] | None = None,
    goes_on: Callable[[int, Point], bool] = lambda at, point: True,
) -> Swept:
    """Sweep a fault over the operations of a scenario.

    Where a fault leaves the same bytes as an earlier one, the work is not taken up a second time.

    Args:
        scenario: what is done.
        fault: what happens.
        scratch: an empty directory.
        points: returns the operations to sweep for their number.
        known: points that were swept before.
        goes_on: told each new point; False stops the sweep.
    """
    expected, num_operations = undisturbed(scenario, scratch / "work")
    shutil.rmtree(scratch / "work")
    swept = Swept(scenario.name, fault, dict(known or {}))
    prepared = scratch / "prepared"
    prepared.mkdir(parents=True)
    _forked(lambda: scenario.prepare(prepared), _log(prepared))
    wanted = [at for at in points(num_operations) if at not in swept.points]
    ends = _stopped if fault in ("killed", "power") else _failed
    seen: dict[str, str] = {}
    for at, end, state in ends(scenario, fault, scratch, wanted):
        if state not in seen:
            seen[state] = _difference(scenario, scratch / "work", expected)
            if seen[state]:
                _keep(scratch, f"{scenario.name}-{fault}-{at}")
        point = Point(end, "a traceback instead of a sentence" if end == "traceback" else seen[state])
        if end == "traceback":
            _keep(scratch, f"{scenario.name}-{fault}-{at}")
        swept.points[at] = point
        if not goes_on(at, point):
            swept.is_whole = False
            break
    return swept


def _failed(scenario: Scenario, fault: Fault, scratch: Path, wanted: Sequence[int]) -> Iterator[tuple[int, str, str]]:
    """Yield each operation, how the work ended when that one failed, and the hash of what it left in place."""
    root = scratch / "work"
    for at in wanted:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(scratch / "prepared", root)
        end = _end(scenario, root, fault, at)
        if end is None:
            return
        yield at, end, _fingerprint(scratch)


def _stopped(scenario: Scenario, fault: Fault, scratch: Path, wanted: Sequence[int]) -> Iterator[tuple[int, str, str]]:
    """Yield each operation, and the hash of what an end of the process in its middle leaves, which is put in place.

    The work is done once; what is there at each operation is copied.
    """
    root, copies, asked = scratch / "work", scratch / "copies", set(wanted)
    found: dict[int, str] = {}
    index = copies / "index"

    def watch(disk: FaultyDisk) -> None:
        at = disk.num_operations
        if at not in asked:
            return
        copy = copies / str(at)
        for part in _parts(scratch):
            shutil.copytree(part, copy / part.name)
        if disk.durable is not None:
            disk.durable.restore(copy / root.name)
        state = _fingerprint(copy)
        if state in found.values():
            shutil.rmtree(copy)
        found[at] = state
        index.write_text(json.dumps(found))

    def act() -> None:
        with FaultyDisk(root, fault, watch=watch).mounted():
            scenario.act(root)

    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(scratch / "prepared", root)
    copies.mkdir()
    if _forked(act, _log(root)):
        raise RuntimeError(f"{scenario.name} fails without any fault: see {_log(root)}")
    for at, state in json.loads(index.read_text()).items() if index.exists() else ():
        if (copies / at).exists():  # else it is one that was there before
            for part in _parts(scratch):
                shutil.rmtree(part)
            for part in _parts(copies / at):
                part.rename(scratch / part.name)
        yield int(at), "ended", state


def _keep(scratch: Path, name: str) -> None:
    """Keep what went wrong, for a person to look at."""
    kept = scratch / "kept" / name
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(scratch / "work", kept)
    shutil.copy(_log(scratch / "work"), f"{kept}.log")


def undisturbed(scenario: Scenario, root: Path) -> tuple[Outcome, int]:
    """Return the outcome without a fault, and the number of operations."""
    root.mkdir(parents=True)
    _forked(lambda: scenario.prepare(root), _log(root))
    counted = root.with_name("operations")

    def act() -> None:
        disk = FaultyDisk(root)
        with disk.mounted():
            scenario.act(root)
        counted.write_text(str(disk.num_operations))

    code = _forked(act, _log(root))
    if code:
        raise RuntimeError(f"{scenario.name} fails without any fault: see {root}.log")
    return scenario.outcome(root), int(counted.read_text())


def _end(scenario: Scenario, root: Path, fault: Fault, at: int) -> str | None:
    """Let the fault happen, and return how the work ended; None if it ended before the fault."""

    def act() -> None:
        disk = FaultyDisk(root, fault, at)
        with disk.mounted():
            scenario.act(root)
        if not disk.has_fired:
            raise _NotFiredError

    return {0: "went on", REFUSED: "refused", NOT_FIRED: None}.get(_called(act, _log(root)), "traceback")


def _difference(scenario: Scenario, root: Path, expected: Outcome) -> str:
    """Take the work up again, and return what is different then; nothing if all is equal."""
    code = _called(lambda: scenario.recover(root), _log(root))
    if code:
        return f"it could not be taken up again: {_log(root).read_text(errors='replace').strip().splitlines()[-1:]}"
    found = scenario.outcome(root)
    return ", ".join(f"{name} differs" for name in sorted({*found, *expected}) if found.get(name) != expected.get(name))


def _parts(scratch: Path) -> list[Path]:
    """Return the directories that a scenario works in."""
    return sorted(part for part in scratch.iterdir() if part.is_dir() and part.name not in ("prepared", "kept", "copies"))


def _fingerprint(scratch: Path) -> str:
    """Return a hash of all that a fault left: names and contents."""
    found = hashlib.sha256()
    for part in _parts(scratch):
        for path in sorted(part.rglob("*")):
            found.update(f"{path.relative_to(scratch)}\0{path.is_dir()}\0".encode())
            if path.is_file():
                found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _log(root: Path) -> Path:
    return root.with_name(f"{root.name}.log")


def _forked(work: Callable[[], None], log: Path) -> int:
    """Do something in a process of its own, which may be ended in the middle, and return its exit code."""
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        os._exit(_called(work, log))
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _called(work: Callable[[], None], log: Path) -> int:
    """Do something, let it print into a file, and return what its exit code would be."""
    with log.open("w") as output, redirect_stdout(output), redirect_stderr(output), _same_clock():
        try:
            work()
        except _NotFiredError:
            return NOT_FIRED
        except UserError as error:
            print(f"error: {error}")
            return REFUSED
        except BaseException:
            traceback.print_exc()
            return FAILED
    return 0


class _NotFiredError(BaseException):
    """The work ended before the fault."""


@contextmanager
def _same_clock() -> Iterator[None]:
    """Let the clock and the process's number be the same each time, so that the same work leaves the same bytes."""
    ticks = itertools.count()
    real = time.perf_counter, time.monotonic, time.time, time.strftime, os.getpid
    try:
        time.perf_counter = time.monotonic = lambda: next(ticks) / 1000
        time.time = lambda: 1.8e9 + next(ticks) / 1000
        time.strftime = lambda *form: "2027-01-15 08:00:00 +0000"
        os.getpid = lambda: 4242
        yield
    finally:
        time.perf_counter, time.monotonic, time.time, time.strftime, os.getpid = real


def every(step: int, offset: int = 1) -> Callable[[int], Sequence[int]]:
    """Return a function that gives each n-th operation, and some beyond the last, so that the sweep ends by itself."""
    return lambda num_operations: range(offset, 2 * num_operations + 50, step)


def lines(results: Sequence[Swept]) -> Iterator[str]:
    """Yield what a person reads of a sweep."""
    yield from (result.line() for result in results)
    for result in results:
        yield from (f"  {result.scenario} {result.fault} at operation {at}: {why}" for at, why in result.different.items())
    points = sum(len(result.points) for result in results)
    equal = points - sum(len(result.different) for result in results)
    yield f"{points} points swept, {equal} equal"
