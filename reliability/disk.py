"""A disk that fails at its n-th operation: full, broken, killed, or without power.

The shim stands between Python and the operating system. It counts every operation that changes a file or a directory below one
directory: opening for writing, writing, truncating, syncing, renaming, linking, removing, making a directory.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn

Fault = Literal["full", "broken", "killed", "power"]
FAULTS: tuple[Fault, ...] = ("full", "broken", "killed", "power")
KILLED = 86
"""Exit code of a process that a fault ended."""
TAKES_SPACE = frozenset({"open", "write", "mkdir", "link", "rename", "fsync"})


class FaultyDisk:
    """Counter of operations below a directory, and the fault at one of them.

    Args:
        root: the directory; what lies elsewhere is not touched.
        fault: ``full`` refuses everything that takes space from the n-th operation on; ``broken`` fails once; ``killed`` ends
            the process, in the middle of a write; ``power`` ends it and leaves only what was synced.
        at: n, from 1; 0 counts only.
        watch: called before each operation, when the directory is as a kill in its middle would leave it; nothing fails then.
    """

    def __init__(
        self, root: Path, fault: Fault = "broken", at: int = 0, watch: Callable[[FaultyDisk], None] | None = None
    ) -> None:
        self.root = root.resolve()
        self.fault = fault
        self.at = at
        self._watch = watch
        self.num_operations = 0
        self.durable = Durable(self.root) if fault == "power" else None

    @property
    def has_fired(self) -> bool:
        """True if the fault has happened."""
        return 0 < self.at <= self.num_operations

    def covers(self, path: Any) -> bool:
        """Return whether a path lies below the root."""
        try:
            found = os.path.abspath(os.fspath(path))
        except TypeError:
            return False
        return isinstance(found, str) and (found == str(self.root) or found.startswith(f"{self.root}{os.sep}"))

    def count(
        self, operation: str, path: str, half: Callable[[], object] = lambda: None, undo: Callable[[], object] = lambda: None
    ) -> None:
        """Count an operation that is about to happen, or let it fail.

        Args:
            operation: its name.
            path: of the file, for the message.
            half: does the first half of it; a kill comes in the middle.
            undo: undoes the half.
        """
        self.num_operations += 1
        if self._watch is not None:
            half()
            self._watch(self)
            undo()
            return
        if self.at == 0 or self.num_operations < self.at:
            return
        is_first = self.num_operations == self.at
        if self.fault == "full" and operation in TAKES_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self.fault == "broken" and is_first:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if self.fault in ("killed", "power") and is_first:
            half()
            self._end()

    def _end(self) -> NoReturn:
        if self.durable is not None:
            self.durable.restore()
        os._exit(KILLED)

    @contextmanager
    def mounted(self) -> Iterator[FaultyDisk]:
        """Put the shim under this process, threads and forks included."""
        real = {
            name: getattr(os, name) for name in ("fsync", "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir")
        }
        real_open, real_truncate, fast_copy = builtins.open, os.truncate, shutil._USE_CP_SENDFILE  # type: ignore[attr-defined]

        def counted(name: str) -> Callable[..., Any]:
            operation = {"replace": "rename", "remove": "unlink"}.get(name, name)

            def call(path: Any, *arguments: Any, **options: Any) -> Any:
                place = _resolve(path, options.get("dir_fd"))
                if self.covers(place):
                    self.count(operation, place)
                done = real[name](path, *arguments, **options)
                if operation == "fsync" and self.durable is not None and self.covers(place):
                    self.durable.sync(path)
                return done

            return call

        def open_file(file: Any, mode: str = "r", buffering: int = -1, *arguments: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+") or not self.covers(_resolve(file)):
                return real_open(file, mode, buffering, *arguments, **options)
            self.count("open", _resolve(file))
            raw = _File(self, file, mode.replace("b", "").replace("t", ""))
            if buffering == 0:
                return raw
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, *arguments, **options)

        def truncate(path: Any, length: int) -> None:
            if self.covers(path):
                self.count("write", str(path))
            real_truncate(path, length)

        try:
            for name in real:
                setattr(os, name, counted(name))
            os.truncate, builtins.open, io.open = truncate, open_file, open_file  # type: ignore[assignment]
            shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
            yield self
        finally:
            for name, function in real.items():
                setattr(os, name, function)
            os.truncate, builtins.open, io.open = real_truncate, real_open, real_open
            shutil._USE_CP_SENDFILE = fast_copy  # type: ignore[attr-defined]


class _File(io.FileIO):
    """A file whose writes are counted."""

    def __init__(self, disk: FaultyDisk, path: Any, mode: str) -> None:
        super().__init__(path, mode)
        self._disk = disk
        self._path = _resolve(path)

    def truncate(self, size: int | None = None) -> int:
        self._disk.count("write", self._path)
        return super().truncate(size)

    def write(self, content: Any) -> int:
        data, place, size = bytes(content), self.tell(), os.fstat(self.fileno()).st_size

        def undo() -> None:
            super(_File, self).truncate(size)
            self.seek(place)

        self._disk.count("write", self._path, lambda: super(_File, self).write(data[: len(data) // 2]), undo)
        return super().write(data)


class Durable:
    """What a disk holds after a power cut: the content of each file, and the entries of each directory, as last synced.

    Args:
        root: a directory; all that it holds at first counts as synced.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[int, bytes] = {}
        self._directories: dict[int, dict[str, tuple[int, bool]]] = {}
        self._held: dict[int, int] = {}
        for path in [root, *root.rglob("*")]:
            handle = os.open(path, os.O_RDONLY)
            self.sync(handle)
            os.close(handle)

    def sync(self, handle: int) -> None:
        """Note the content of an open file or directory as it is now."""
        number = os.fstat(handle).st_ino
        if number not in self._held:
            self._held[number] = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY)  # keeps the number from being used again
        if os.path.isdir(handle):
            self._directories[number] = {entry.name: (entry.inode(), entry.is_dir()) for entry in os.scandir(handle)}
        else:
            size = os.fstat(handle).st_size
            self._files[number] = os.pread(self._held[number], size, 0)

    def restore(self, path: Path | None = None) -> None:
        """Put the directory, or another in its place, into the state after the cut."""
        target = self._root if path is None else path
        for part in target.iterdir():
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        self._write(target, self._root.stat().st_ino)

    def _write(self, path: Path, number: int) -> None:
        for name, (child, is_directory) in self._directories.get(number, {}).items():
            if is_directory:
                (path / name).mkdir()
                self._write(path / name, child)
            else:
                (path / name).write_bytes(self._files.get(child, b""))


def _resolve(path: Any, directory: int | None = None) -> str:
    """Return the path of a file that is named by path, by handle, or by name within an open directory."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    if directory is not None:
        return os.path.join(os.readlink(f"/proc/self/fd/{directory}"), os.fspath(path))
    return os.fspath(path)
