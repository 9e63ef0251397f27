"""Local states of a client on its own disk, one file per step, so that a run can continue from any of the last ones.

The server keeps and sends only the name of a state: which of them a step begins with is part of the server's checkpoint, so a
round that is retried, or a server that goes back to its last checkpoint, finds every client where it was then.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from unisono.core.config import parse_json
from unisono.core.payload import Payload
from unisono.core.wire import from_bytes, to_bytes
from unisono.runs.files import write_atomically

NAME = "state"
"""Scalar of the payload that stands for a local state on the server."""
PATTERN = re.compile(r"(\d{6})-(\d{6})")


class ClientStateFiles:
    """The states of one client in one run.

    Args:
        directory: where they lie.
        history: rounds that the server may go back.
    """

    def __init__(self, directory: Path, history: int) -> None:
        self.directory = directory
        self._history = history

    def load(self, reference: Payload) -> Payload:
        """Return the state that the server names; empty if it names none.

        It is empty too if the file is gone or damaged: then the client begins anew.
        """
        name = str(reference.scalars.get(NAME, ""))
        if not PATTERN.fullmatch(name):
            return Payload()
        try:
            return from_bytes(self._path(name).read_bytes())
        except (OSError, ValueError):
            return Payload()

    def save(self, state: Payload, round: int, begun: Payload) -> Payload:
        """Save a state durably, and return what stands for it on the server: nothing for an empty one.

        Args:
            state: the client's new state.
            round: in which it was made.
            begun: names the state that it was made from.
        """
        if not (state.groups or state.scalars):
            return Payload()
        names = self.names()
        number = int(names[-1].split("-")[1]) + 1 if names else 0
        name = f"{round:06d}-{number:06d}"
        write_atomically(self._path(name), to_bytes(state))
        self._forget(round, str(begun.scalars.get(NAME, "")), [*names, name])
        return Payload(scalars={NAME: name})

    def names(self) -> list[str]:
        """Return all states, in the order in which they were made."""
        found = [path.stem for path in self.directory.glob("*.payload") if PATTERN.fullmatch(path.stem)]
        return sorted(found, key=lambda name: int(name.split("-")[1]))

    def _forget(self, round: int, begun: str, names: list[str]) -> None:
        """Remove the states that no checkpoint can name any more: old ones that no step of the last rounds began with."""
        oldest = round - self._history
        file = self.directory / "begun.json"
        recent = [*(step for step in _steps(file) if step[0] >= oldest), (round, begun)]
        write_atomically(file, json.dumps(recent).encode())
        needed = {name for _, name in recent}
        for name in names[:-1]:
            if int(name.split("-")[0]) < oldest and name not in needed:
                self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.payload"


def _steps(file: Path) -> list[tuple[int, str]]:
    """Return round and beginning of the last steps; none where the file is damaged, which costs a state at most."""
    try:
        return [(int(round), str(begun)) for round, begun in parse_json(file.read_text())]
    except (OSError, ValueError, TypeError):
        return []
