"""Releases of a run on a real federation, ``releases.jsonl``: written before each phase, and never cut.

A run that goes back to its last checkpoint asks clients again. What they were sent before that has left all the same, and its
noise counts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from unisono.federation.loop import Callback, ServerState
from unisono.runs.files import explained, read_entry, sync_directory

FILE = "releases.jsonl"


class ReleaseLog(Callback):
    """Callback that counts the noisy means which no checkpoint knows.

    Args:
        directory: the run's.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self.lost = 0
        """Noisy means of phases that were begun, and then forgotten by going back to a checkpoint."""

    def on_run_start(self, state: ServerState) -> None:
        """Count what was begun at or after the round that comes next: it is done, and counted, once more."""
        counted: list[int] = []
        lines, num_damaged = self._read()
        self.lost = num_damaged
        for line in [*lines, {"round": state.round, "lost": 0}]:
            if "lost" in line:  # here the run went back to a checkpoint, perhaps one before the last, where that is damaged
                self.lost += sum(round >= line["round"] for round in counted)
                counted = [round for round in counted if round < line["round"]]
            elif line["noisy"]:
                counted.append(line["round"])
        self._append({"round": state.round, "lost": self.lost})

    def begin(self, round: int, phase: str, num_clients: int, noisy: bool) -> None:
        """Write that a phase is about to be asked for.

        Args:
            round: from 0.
            phase: of the round.
            num_clients: that are asked.
            noisy: whether it ends with a mean that carries noise.
        """
        self._append({"round": round, "phase": phase, "clients": num_clients, "noisy": noisy})

    def _append(self, entry: dict[str, Any]) -> None:
        with explained(self._path):
            is_new = not self._path.exists()
            is_torn = not is_new and not self._path.read_bytes().endswith(b"\n")  # by a crash
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "ab") as file:
                file.write(b"\n" * is_torn + json.dumps(entry).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                sync_directory(self._path.parent)

    def _read(self) -> tuple[list[dict[str, Any]], int]:
        """Return all lines, and how many are damaged: each may have told of a noisy mean, and counts as one.

        A line that a crash left half-written had led to nothing yet.
        """
        content = self._path.read_bytes() if self._path.is_file() else b""
        entries = [read_entry(line) for line in content.split(b"\n") if line.endswith(b"}")]
        good = [entry for entry in entries if entry is not None and _is_whole(entry)]
        return good, len(entries) - len(good)


def _is_whole(entry: dict[str, Any]) -> bool:
    return isinstance(entry.get("round"), int) and (isinstance(entry.get("lost"), int) or isinstance(entry.get("noisy"), bool))
