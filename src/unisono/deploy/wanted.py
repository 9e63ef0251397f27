"""Runs that go on by themselves: whatever was started and has not come to its end is continued after the server restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from unisono.core.errors import UserError
from unisono.deploy.directories import PAUSED_FILE, START_SECONDS, WANTED_FILE, ServerDirectory
from unisono.runs.directory import RunDirectory

MOST_TRIES = 5
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0


def want(path: Path) -> None:
    """Have the run in a directory continued until it is finished."""
    RunDirectory.open(path).write_json(WANTED_FILE, {"until": "finished"})


def unwant(path: Path) -> None:
    """Let the run in a directory be as it is."""
    (path / WANTED_FILE).unlink(missing_ok=True)


@contextmanager
def unwanted_if_refused(directory: RunDirectory) -> Iterator[None]:
    """Let a run be whose settings are refused before its first round: another try would be refused too."""
    try:
        yield
    except UserError:
        if not directory.checkpoints().rounds():
            unwant(directory.path)
        raise


@dataclass
class _Tries:
    number: int = 0
    rounds: int = -1
    again_at: float = 0.0


class RunKeeper:
    """Continues the wanted runs of a server.

    Args:
        server: its directory.
        launch: starts the run in a directory; may raise UserError.
        tell: told what was done.
        first_pause: seconds before the second try without a new round; doubled each time.
        start_seconds: see ``START_SECONDS``.
    """

    def __init__(
        self,
        server: ServerDirectory,
        launch: Callable[[Path], object],
        tell: Callable[[str], None],
        first_pause: float = FIRST_PAUSE,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._server = server
        self._launch = launch
        self._tell = tell
        self._first_pause = first_pause
        self._start_seconds = start_seconds
        self._tries: dict[Path, _Tries] = {}

    def look(self) -> None:
        """Continue every wanted run that nobody works on, unless the server is paused."""
        if (self._server.path / PAUSED_FILE).exists():
            return
        for file in sorted(self._server.runs.glob(f"*/{WANTED_FILE}")):
            try:
                self._look_at(RunDirectory.open(file.parent))
            except Exception as error:  # whatever is wrong with one run, the others go on
                self._tell(f"run {file.parent.name} cannot be continued now: {error}")

    def _look_at(self, directory: RunDirectory) -> None:
        path = directory.path
        if directory.finished:
            unwant(path)
            return
        status = path / "status.json"
        begins = directory.read_json("status.json")["status"] == "starting" if status.is_file() else True
        if directory.in_use or (begins and time.time() - (path / "flower.json").stat().st_mtime < self._start_seconds):
            return
        rounds = len(directory.logs["metrics"].read())
        tries = self._tries.setdefault(path, _Tries())
        if rounds > tries.rounds:
            tries.number, tries.rounds, tries.again_at = 0, rounds, 0.0
        if time.monotonic() < tries.again_at:
            return
        if tries.number >= MOST_TRIES:
            unwant(path)
            self._tell(f"run {path.name} has failed {MOST_TRIES} times without a new round and is given up")
            return
        tries.again_at = time.monotonic() + min(self._first_pause * 2**tries.number, LONGEST_PAUSE)
        tries.number += 1
        self._tell(f"run {path.name} goes on after {rounds} rounds")
        self._launch(path)
