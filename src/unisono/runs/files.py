"""Atomic writes: temporary file, fsync, rename."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from torch import Tensor

from unisono.core.config import parse_json
from unisono.core.errors import UserError
from unisono.core.payload import Payload


class DamagedFileError(UserError):
    """A file of a run is not as it was written; the message names it."""


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an operating system's refusal to write into one sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{path} cannot be written: {reason}. What was saved before is intact.") from error


def check_writable(path: Path) -> None:
    """Raise a UserError if a file cannot be written there; asked before the work that fills it."""
    with explained(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        with TemporaryFile(dir=next(folder for folder in path.absolute().parents if folder.exists())):
            pass


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file; whoever reads it sees the old content or the new, never a part."""
    with explained(path):
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            make_directory(path.parent)
            write_and_sync(temporary, content)
            temporary.replace(path)
            sync_directory(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_and_sync(path: Path, content: bytes | bytearray) -> None:
    """Write a file through to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Make a directory and those above it, durably: else a power cut could take it away with all that was synced in it."""
    if path.is_dir():
        return
    make_directory(path.parent, mode)
    path.mkdir(mode=mode, exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames inside a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_tree(path: Path) -> None:
    """Remove a directory; what cannot be removed stays."""
    shutil.rmtree(path, ignore_errors=True)


def payload_to_safetensors(payload: Payload) -> bytes:
    """Return a payload as a safetensors file; metadata holds scalars, groups, and the order, because the format sorts."""
    from safetensors.torch import save

    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in payload.tensors():
        # The format refuses tensors that share memory, such as a target network that still is its online network.
        storage = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.detach().clone().contiguous() if storage in seen else tensor.detach().contiguous()
        seen.add(storage)
    # One entry, because the order of several is random, and the same payload should give the same bytes.
    described = {"scalars": dict(payload.scalars), "groups": list(payload.groups), "tensors": list(tensors)}
    return bytes(save(tensors, metadata={"payload": json.dumps(described)}))


def payload_from_safetensors(content: bytes) -> Payload:
    """Return the payload of a safetensors file; raise a ValueError if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(content)
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        described = parse_json(header.get("__metadata__", {}).get("payload", "{}"))
        ordered = {name: tensors[name] for name in described.get("tensors", tensors)}
        return Payload.unflatten(ordered, described.get("scalars"), described.get("groups", ()))
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not a payload in a safetensors file: {error}") from error


class JsonLines:
    """A file of one JSON object per line that can be cut back to an earlier length.

    Args:
        path: the file; made at the first line.
        check: raises a DamagedFileError if these bytes are not what was written.
    """

    def __init__(self, path: Path, check: Callable[[bytes], None] = lambda content: None) -> None:
        self.path = path
        self._check = check

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add a line and hand it to the operating system; half a line that a kill left at the end goes."""
        with explained(self.path):
            self.cut(self._whole())
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_without_nan(entry), allow_nan=False) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """Return all whole lines; raise a DamagedFileError if one cannot be read."""
        content = self._content()
        try:
            self._check(content)
        except DamagedFileError:
            content = self._content()  # it may have grown between the two looks
            self._check(content)
        lines = content.split(b"\n")[:-1]
        entries = [read_entry(line) for line in lines if line]
        if None in entries:
            raise DamagedFileError(f"{self.path} is damaged in line {1 + entries.index(None)}.")
        return [entry for entry in entries if entry is not None]

    def repair(self, length: int) -> None:
        """Keep the lines within this many bytes that can be read, and the damaged file beside as ``NAME.damaged``."""
        with explained(self.path):
            content = self.path.read_bytes() if self.path.exists() else b""
        write_atomically(self.path.with_name(f"{self.path.name}.damaged"), content)
        lines = content[:length].split(b"\n")[:-1]
        write_atomically(self.path, b"".join(line + b"\n" for line in lines if read_entry(line) is not None))

    def _content(self) -> bytes:
        try:
            return self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise DamagedFileError(f"{self.path} cannot be read ({error.strerror}).") from error

    def _whole(self) -> int:
        """Return the size without half a line at the end."""
        length = self.length
        if length == 0:
            return 0
        with self.path.open("rb") as file:
            file.seek(length - 1)
            if file.read(1) == b"\n":
                return length
        return self.path.read_bytes().rfind(b"\n") + 1

    @property
    def length(self) -> int:
        """Size in bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def cut(self, length: int) -> None:
        """Drop everything beyond this many bytes."""
        if self.length > length:
            with explained(self.path):
                os.truncate(self.path, length)

    def sync(self) -> None:
        """Write the lines through to the disk."""
        if self.path.exists():
            with explained(self.path), self.path.open("rb") as file:
                os.fsync(file.fileno())


def read_entry(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line; None if there is none."""
    try:
        found = parse_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _without_nan(value: Any) -> Any:
    """Return the same value with null for numbers that JSON has no word for, such as a probe that came out NaN."""
    if isinstance(value, Mapping):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
