"""The SuperLink of a server, behind its door: ``python -m unisono.deploy.superlink DIRECTORY ARGUMENTS``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from unisono.core.errors import UserError
from unisono.deploy.admitted_keys import AdmittedKeys
from unisono.deploy.directories import ServerDirectory
from unisono.engines.flower.door import Door
from unisono.engines.flower.internals import serve_superlink

GIBIBYTE = 2**30


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
        keys = None if directory.config.insecure else AdmittedKeys(directory).current
        serve_superlink(arguments, partial(Door, keys=keys, token=directory.token), has_room(directory))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
