"""A fault at the n-th operation, for every n; after each the work is taken up again, and must end as an undisturbed one."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from reliability.disk import KILLED, Fault, FaultyDisk
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


@dataclass
class Swept:
    """Result of one sweep.

    Args:
        scenario: its name.
        fault: what happened at each point.
        ends: how often the work ended in which way at the fault.
        different: points after which the outcome was another, with the reason.
    """

    scenario: str
    fault: Fault
    ends: Counter[str] = field(default_factory=Counter)
    different: dict[int, str] = field(default_factory=dict)

    @property
    def num_points(self) -> int:
        """Points that were swept."""
        return sum(self.ends.values())

    def line(self) -> str:
        """Return one line about it."""
        ends = ", ".join(f"{count} {name}" for name, count in sorted(self.ends.items()))
        equal = self.num_points - len(self.different)
        return f"{self.scenario:14} {self.fault:8} {self.num_points:5} points, {equal:5} equal   ({ends})"


def sweep(scenario: Scenario, fault: Fault, scratch: Path, points: Callable[[int], Sequence[int]]) -> Swept:
    """Sweep a fault over the operations of a scenario.

    Args:
        scenario: what is done.
        fault: what happens.
        scratch: an empty directory.
        points: returns the operations to sweep for their number.
    """
    expected, num_operations = undisturbed(scenario, scratch / "work")
    shutil.rmtree(scratch / "work")
    swept = Swept(scenario.name, fault)
    prepared = scratch / "prepared"
    prepared.mkdir(parents=True)
    _forked(lambda: scenario.prepare(prepared), _log(prepared))
    for at in points(num_operations):
        root = scratch / "work"
        shutil.copytree(prepared, root)
        end = _end(scenario, root, fault, at)
        if end is None:
            shutil.rmtree(root)
            break
        swept.ends[end] += 1
        problem = "a traceback instead of a sentence" if end == "traceback" else _difference(scenario, root, expected)
        if problem:
            swept.different[at] = problem
            kept = scratch / f"{scenario.name}-{fault}-{at}"
            shutil.rmtree(kept, ignore_errors=True)
            root.rename(kept)
        else:
            shutil.rmtree(root)
    return swept


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
            os._exit(NOT_FIRED)

    code = _forked(act, _log(root))
    return {0: "went on", REFUSED: "refused", KILLED: "ended", NOT_FIRED: None}.get(code, "traceback")


def _difference(scenario: Scenario, root: Path, expected: Outcome) -> str:
    """Take the work up again, and return what is different then; nothing if all is equal."""
    code = _forked(lambda: scenario.recover(root), _log(root))
    if code:
        return f"it could not be taken up again: {_log(root).read_text(errors='replace').strip().splitlines()[-1:]}"
    found = scenario.outcome(root)
    return ", ".join(f"{name} differs" for name in sorted({*found, *expected}) if found.get(name) != expected.get(name))


def _log(root: Path) -> Path:
    return root.with_name(f"{root.name}.log")


def _forked(work: Callable[[], None], log: Path) -> int:
    """Do something in a process of its own, which prints into a file, and return its exit code."""
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _run(work)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _run(work: Callable[[], None]) -> None:
    code = FAILED
    try:
        work()
        code = 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def every(step: int, offset: int = 1) -> Callable[[int], Sequence[int]]:
    """Return a function that gives each n-th operation, and some beyond the last, so that the sweep ends by itself."""
    return lambda num_operations: range(offset, 2 * num_operations + 50, step)


def lines(results: Sequence[Swept]) -> Iterator[str]:
    """Yield what a person reads of a sweep."""
    yield from (result.line() for result in results)
    for result in results:
        yield from (f"  {result.scenario} {result.fault} at operation {at}: {why}" for at, why in result.different.items())
    points = sum(result.num_points for result in results)
    equal = points - sum(len(result.different) for result in results)
    yield f"{points} points swept, {equal} equal"
