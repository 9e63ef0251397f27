"""Backup of a server or a client: what cannot be made again, in one file that only its owner may read.

Left out are logs, Flower's own files, the database with single answers of clients, and the local states of runs.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from unisono.core.errors import UserError
from unisono.deploy.directories import CLIENT_FILE, SERVER_FILE
from unisono.deploy.server_audit import record
from unisono.deploy.supervisor import PID_FILE, supervisor_pid

LEFT_OUT = ("logs", "flower", "states", PID_FILE, ".lock")


def back_up(directory: Path, target: Path, with_states: bool = False) -> int:
    """Write a backup and return the number of files in it; a running server or client is not disturbed.

    Args:
        directory: of a server or a client.
        target: the file; it must not exist.
        with_states: whether local states of a client's runs are part of it, so that runs can go on after a restore.
    """
    if not any((directory / name).is_file() for name in (SERVER_FILE, CLIENT_FILE)):
        raise UserError(f"{directory} is neither a server's nor a client's: it has no {SERVER_FILE} and no {CLIENT_FILE}.")
    if target.exists():
        raise UserError(f"{target} exists already: choose another --to.")
    if (directory / SERVER_FILE).is_file():
        record(directory, "backup", str(target))
    draft = target.with_name(target.name + ".new")
    files = list(_files(directory, with_states, {target.resolve(), draft.resolve()}))
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as raw:
        with tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for file in files:
                archive.add(file, file.relative_to(directory).as_posix(), recursive=False)
        raw.flush()
        os.fsync(raw.fileno())
    draft.replace(target)
    return len(files)


def restore(source: Path, directory: Path) -> int:
    """Write the files of a backup into an empty directory and return their number.

    Args:
        source: what ``back_up`` wrote.
        directory: where; it must be empty, so that nothing newer is lost.
    """
    if supervisor_pid(directory) is not None or (directory.exists() and any(directory.iterdir())):
        raise UserError(f"{directory} is not empty: restore into a new directory, and put it in place by hand.")
    try:
        with tarfile.open(source, "r:gz") as archive:
            members = archive.getmembers()
            if not any(member.name in (SERVER_FILE, CLIENT_FILE) for member in members):
                raise UserError(f"{source} is no backup of a server or a client.")
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
            archive.extractall(directory, filter="data")
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UserError(f"{source} cannot be read ({error}): take another backup.") from error
    return len(members)


def _files(directory: Path, with_states: bool, apart: set[Path]) -> Iterator[Path]:
    left_out = {name for name in LEFT_OUT if name != "states" or not with_states}
    for path in sorted(directory.rglob("*")):
        parts = path.relative_to(directory).parts
        skipped = parts[0] in left_out or path.name in left_out or path.name.startswith("state.db") or path.suffix == ".tmp"
        if path.is_file() and not path.is_symlink() and not skipped and path.resolve() not in apart:
            yield path
