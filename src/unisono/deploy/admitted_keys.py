"""Keys of a federation's clients as a running server knows them: what commands change is in force at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping

from unisono.core.errors import UserError
from unisono.deploy.directories import ServerDirectory
from unisono.engines.flower.nodes import key_bytes

FORMER_SECONDS = 60
"""Seconds after which keys that are no longer taken are forgotten."""


class AdmittedKeys(Mapping[bytes, int]):
    """Number of a client by its public key, as Flower sends it; a look reads the files again if they have changed.

    Args:
        directory: the server's.
    """

    def __init__(self, directory: ServerDirectory) -> None:
        self._directory = directory
        self._seen: tuple[float, ...] = ()
        self._keys: dict[bytes, int] = {}

    def current(self) -> dict[bytes, int]:
        """Return all keys; the last known ones where the file cannot be read."""
        try:
            found = self._directory.key_file.stat()
            seen = (found.st_mtime_ns, found.st_ino, time.monotonic() // FORMER_SECONDS)
            if self._seen != seen:
                self._keys = {key_bytes(line): client for line, client in self._directory.admitted_keys.items()}
                self._seen = seen
        except (OSError, UserError) as error:
            print(f"The clients' keys cannot be read ({error}): those known so far stay in force.", file=sys.stderr, flush=True)
        return self._keys

    def __getitem__(self, key: bytes) -> int:
        return self.current()[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.current())

    def __len__(self) -> int:
        return len(self.current())
