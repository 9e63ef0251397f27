"""The faulty disk itself: what it counts, and what a power cut leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from reliability.disk import FAULTS, KILLED, Fault, FaultyDisk
from reliability.sweep import Outcome, every, sweep

from unisono.runs.files import write_and_sync, write_atomically


def ended(root: Path, fault: Fault, at: int) -> None:
    """Writes a file atomically and another plainly, in a process that the fault ends."""
    process = os.fork()
    if process == 0:
        with FaultyDisk(root, fault, at).mounted():
            write_atomically(root / "new" / "atomic", b"123456")
            (root / "plain").write_bytes(b"abcdef")
            os.unlink(root / "old")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == KILLED


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    write_and_sync(tmp_path / "disk" / "old", b"old")
    return tmp_path / "disk"


def found(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_operations_are_counted_below_the_root_alone(root: Path, tmp_path: Path) -> None:
    with FaultyDisk(root).mounted() as disk:
        write_atomically(root / "a", b"1")  # open, write, sync, rename, sync of the directory
        (tmp_path / "elsewhere").write_text("2")
        (root / "old").unlink()
    assert disk.num_operations == 6


def test_a_kill_comes_in_the_middle_of_a_write(root: Path) -> None:
    ended(root, "killed", 9)  # mkdir, sync, open, write, sync, rename, sync, open, write
    assert found(root) == {"new/atomic": b"123456", "old": b"old", "plain": b"abc"}


def test_a_power_cut_leaves_what_was_synced(root: Path) -> None:
    ended(root, "power", 10)  # before the old file goes
    assert found(root) == {"new/atomic": b"123456", "old": b"old"}
    ended(root, "power", 6)
    assert found(root) == {"new/atomic": b"123456", "old": b"old"}, "the entries of a directory are as they were synced"


def test_a_full_and_a_broken_disk(root: Path) -> None:
    with FaultyDisk(root, "full", 1).mounted():
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                (root / "a").write_bytes(b"1")
        (root / "old").unlink()
    with FaultyDisk(root, "broken", 2).mounted():
        with pytest.raises(OSError, match="Input/output"):
            (root / "a").write_bytes(b"1")
        (root / "a").write_bytes(b"1")


class Careless:
    """Writes its result in place, and believes what it finds."""

    name = "careless"

    def prepare(self, root: Path) -> None: ...

    def act(self, root: Path) -> None:
        (root / "result").write_text("a result")

    def recover(self, root: Path) -> None:
        if not (root / "result").exists():
            self.act(root)

    def outcome(self, root: Path) -> Outcome:
        return {"result": (root / "result").read_bytes()}


def test_a_sweep_finds_a_careless_write(tmp_path: Path) -> None:
    swept = sweep(Careless(), "killed", tmp_path, every(1))
    assert (len(swept.points), swept.different) == (2, {2: "result differs"})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_sweep_that_was_stopped_goes_on(tmp_path: Path, fault: Fault) -> None:
    first = sweep(Careless(), fault, tmp_path / "first", every(1), goes_on=lambda at, point: False)
    assert (sorted(first.points), first.is_whole) == ([1], False)
    rest = sweep(Careless(), fault, tmp_path / "rest", every(1), known=first.points)
    whole = sweep(Careless(), fault, tmp_path / "whole", every(1))
    assert rest == whole
    assert len(whole.points) == 2


def test_a_watched_disk_shows_what_a_kill_would_leave(root: Path) -> None:
    seen: list[dict[str, bytes]] = []
    with FaultyDisk(root, watch=lambda disk: seen.append(found(root))).mounted():
        write_atomically(root / "atomic", b"123456")
        with (root / "old").open("ab") as file:
            file.write(b"er")
    assert list(seen[1].values()) == [b"123", b"old"], "half of a write"
    assert seen[-1] == {"atomic": b"123456", "old": b"olde"}
    assert found(root) == {"atomic": b"123456", "old": b"older"}, "and nothing of it stays"
