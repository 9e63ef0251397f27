"""Files whose every line names the hash of the one before, so that a line that was changed or removed is noticed."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unisono.core.config import parse_json
from unisono.core.errors import UserError
from unisono.deploy.policy_tables import canonical
from unisono.runs.files import explained, make_directory, sync_directory

Line = dict[str, Any]


class DamagedChainError(UserError):
    """A line of a chain is not as it was written."""

    def __init__(self, path: Path, line: int) -> None:
        super().__init__(f"{path} is damaged at line {line}.")
        self.line = line


class Chain:
    """Lines of JSON, each with ``seq``, ``time``, ``prev`` and ``hash``; the file is locked while a line is added.

    Args:
        path: the file; made at the first line.
        start: what the first line names as the one before.
        now: the time.
    """

    def __init__(self, path: Path, start: bytes, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.path = path
        self._start = hashlib.sha256(start).hexdigest()
        self._now = now
        self.lines: list[Line] = []
        self._size = 0
        self.refresh()

    @property
    def head(self) -> tuple[int, str]:
        """Number of lines, and the hash of the last."""
        return len(self.lines), self.lines[-1]["hash"] if self.lines else self._start

    def refresh(self) -> None:
        """Read and check the lines that were added since the last look; cut a line that a crash left half-written."""
        if not self.path.exists():
            self.lines, self._size = [], 0
            return
        with explained(self.path), self.path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._catch_up(file)

    def append(self, entry: Line) -> Line:
        """Add a line and write it through to the disk; nothing is done for anybody before this returns."""
        with explained(self.path):
            make_directory(self.path.parent, 0o700)
            is_new = not self.path.exists()
            with os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._catch_up(file)
                written = self._write(file, entry)
            if is_new:
                sync_directory(self.path.parent)
            return written

    @staticmethod
    def aside(path: Path, start: bytes, entry: Line) -> Path:
        """Put a file aside, whatever is in it, and begin a new one whose first line is this; return where the old one is."""
        old = path.with_name(f"{path.name}.{datetime.now(UTC):%Y%m%dT%H%M%S}.old")
        with explained(path):
            path.replace(old)
        Chain(path, start).append(entry)
        return old

    def _catch_up(self, file: Any) -> None:
        size = os.fstat(file.fileno()).st_size
        if size < self._size:
            self.lines, self._size = [], 0
        file.seek(self._size)
        content = file.read()
        whole = content.rfind(b"\n") + 1
        lines = list(self.lines)
        for text in content[:whole].splitlines():
            lines.append(self._checked(text, lines))
        self.lines, self._size = lines, self._size + whole
        if whole < len(content):
            # Whoever wrote half a line had done nothing yet: the line comes first.
            file.truncate(self._size)
            self._write(file, {"kind": "repair", "cut": len(content) - whole})

    def _checked(self, text: bytes, before: list[Line]) -> Line:
        try:
            line = parse_json(text)
            prev = before[-1]["hash"] if before else self._start
            rest = {key: value for key, value in line.items() if key != "hash"}
            if line["seq"] == len(before) and line["prev"] == prev and line["hash"] == _hash(prev, rest):
                return dict(line)
        except (ValueError, LookupError, TypeError, AttributeError):
            pass
        raise DamagedChainError(self.path, len(before) + 1)

    def _write(self, file: Any, entry: Line) -> Line:
        seq, prev = self.head
        line = {"seq": seq, "time": self._now().isoformat(timespec="seconds"), "prev": prev, **entry}
        line["hash"] = _hash(prev, line)
        text = canonical(line) + b"\n"
        file.seek(self._size)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        self.lines.append(line)
        self._size += len(text)
        return line


def _hash(prev: str, line: Line) -> str:
    return hashlib.sha256(prev.encode() + canonical(line)).hexdigest()
