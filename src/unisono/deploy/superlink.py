"""The SuperLink of a server, behind its door: ``python -m unisono.deploy.superlink DIRECTORY ARGUMENTS``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from unisono.core.errors import UserError
from unisono.deploy.directories import ServerDirectory
from unisono.engines.flower.control import key_bytes
from unisono.engines.flower.door import Door
from unisono.engines.flower.internals import serve_superlink

GIBIBYTE = 2**30


class KnownKeys:
    """The keys of all clients; a call reads the file again if it has changed.

    Args:
        directory: the server's.
    """

    def __init__(self, directory: ServerDirectory) -> None:
        self._directory = directory
        self._seen: tuple[int, int] | None = None
        self._keys: frozenset[bytes] = frozenset()

    def __call__(self) -> frozenset[bytes]:
        """Return the keys as Flower sends them; the last known ones where the file cannot be read."""
        try:
            found = self._directory.key_file.stat()
            if self._seen != (found.st_mtime_ns, found.st_ino):
                self._keys = frozenset(key_bytes(line) for line in self._directory.admitted_keys)
                self._seen = (found.st_mtime_ns, found.st_ino)
        except (OSError, UserError) as error:
            print(f"The clients' keys cannot be read ({error}): those known so far stay in force.", file=sys.stderr, flush=True)
        return self._keys


def has_room(directory: ServerDirectory, seconds: float = 2.0) -> Callable[[], bool]:
    """Return a function that says whether answers may take more of the disk; it looks every few seconds."""
    limit = directory.config.max_disk_gib * GIBIBYTE
    looked, is_free = -seconds, True

    def look() -> bool:
        nonlocal looked, is_free
        if time.monotonic() - looked >= seconds:
            looked = time.monotonic()
            is_free = sum(file.stat().st_size for file in directory.path.glob("state.db*")) < limit
        return is_free

    return look


def main(path: Path, arguments: Sequence[str]) -> None:
    """Serve until the process is ended, or end it with a sentence if the door cannot be put up.

    Args:
        path: the server's directory.
        arguments: those of ``flower-superlink``.
    """
    try:
        directory = ServerDirectory.open(path)
        keys = None if directory.config.insecure else KnownKeys(directory)
        serve_superlink(arguments, partial(Door, keys=keys, token=directory.token), has_room(directory))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
