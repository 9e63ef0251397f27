"""Local states of clients between rounds: in memory, on disk beyond a limit.

States change in two steps, ``stage`` during a round and ``commit`` at its end, so a round that is retried starts from the
states it found.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.core.wire import from_bytes, to_bytes


class ClientStateStore:
    """Local payloads by client id; empty for a client that has none.

    Args:
        memory_limit: bytes that stay in memory; states beyond it go to disk, oldest first.
        directory: where they go; a temporary directory where None.
    """

    def __init__(self, memory_limit: int = 2**31, directory: Path | None = None) -> None:
        self._limit = memory_limit
        self._directory = directory
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._memory: dict[int, Payload] = {}
        self._on_disk: set[int] = set()
        self._staged: dict[int, Payload] = {}
        self._num_bytes = 0
        self._versions: dict[int, int] = {}

    def get(self, client_id: int) -> Payload:
        """Return the client's state as of now, staged changes included."""
        if client_id in self._staged:
            return self._staged[client_id]
        if client_id in self._memory:
            return self._memory[client_id]
        if client_id in self._on_disk:
            return from_bytes(self._file(client_id).read_bytes())
        return Payload()

    def stage(self, client_id: int, state: Payload) -> None:
        """Stage a new state, to be kept at ``commit``."""
        if state.groups or state.scalars or client_id in self or client_id in self._staged:
            self._staged[client_id] = state

    def commit(self, round: int) -> None:
        """Keep all staged states; ``version`` tells the round of a client's last change."""
        for client_id, state in self._staged.items():
            self._forget(client_id)
            self._memory[client_id] = state
            self._num_bytes += state.num_bytes
            self._versions[client_id] = round
        self._staged.clear()
        while self._num_bytes > self._limit and self._memory:
            self._spill(next(iter(self._memory)))

    def rollback(self) -> None:
        """Drop all staged states."""
        self._staged.clear()

    def version(self, client_id: int) -> int:
        """Return the round in which the state last changed."""
        return self._versions[client_id]

    def restore(self, client_id: int, state: Payload, version: int) -> None:
        """Restore a state from a checkpoint."""
        self._staged[client_id] = state
        self.commit(version)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted([*self._memory, *self._on_disk]))

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._memory or client_id in self._on_disk

    def __len__(self) -> int:
        return len(self._memory) + len(self._on_disk)

    def close(self) -> None:
        """Remove what was spilled."""
        for client_id in self._on_disk:
            with suppress(OSError):
                self._file(client_id).unlink(missing_ok=True)
        if self._on_disk and self._directory is not None:
            with suppress(OSError):
                self._directory.rmdir()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _forget(self, client_id: int) -> None:
        old = self._memory.pop(client_id, None)
        self._num_bytes -= old.num_bytes if old is not None else 0
        if client_id in self._on_disk:
            self._on_disk.remove(client_id)
            with suppress(OSError):  # what stays is written over, or goes with the directory
                self._file(client_id).unlink(missing_ok=True)

    def _spill(self, client_id: int) -> None:
        state = self._memory.pop(client_id)
        self._num_bytes -= state.num_bytes
        try:
            self._file(client_id).write_bytes(to_bytes(state))
        except OSError as error:
            raise UserError(
                f"States of clients cannot be written to {self._directory}: {error.strerror or error}. Free some space or "
                "raise engine.state_memory_gib, which keeps them in memory."
            ) from error
        self._on_disk.add(client_id)

    def _file(self, client_id: int) -> Path:
        if self._directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="unisono-clients-")
            self._directory = Path(self._temporary.name)
        self._directory.mkdir(parents=True, exist_ok=True)
        return self._directory / f"{client_id}.state"
