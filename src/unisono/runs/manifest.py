"""The manifest of a run directory: sizes and checksums of its files, so that damage and edits are noticed."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unisono.core.config import parse_json
from unisono.runs.files import DamagedFileError, write_atomically

MANIFEST_FILE = "manifest.json"
LOG = ".jsonl"
"""Ending of files that only grow: their first bytes are recorded, as many as there were."""
FEDERATION_FILE = "federation.json"
"""Name of the run on its federation; a simulation has none."""
LASTING = ("config.toml", FEDERATION_FILE, "run_info.json", "start.json")
"""Files that do not change once they are written; they are listed from the first checkpoint on."""
PAGES = ("report.html", "gallery.html")
FINAL = (*PAGES, "floors.json", "privacy.json", "environment.json", "model/*", "report/*", "clusters/*")
"""Files that change until the run is finished; they are listed from then on."""


class Manifest:
    """Versions of files, by their name below the run directory; each is a size and a checksum.

    It is written before a file whose new content is known, with the old version beside the new one, and else after the file.
    So a kill between the two leaves no false alarm.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def exists(self) -> bool:
        """True if there is one; runs that were put together by hand have none."""
        return (self._directory / MANIFEST_FILE).is_file()

    @property
    def is_damaged(self) -> bool:
        """True if it cannot be read."""
        try:
            self._read()
        except DamagedFileError:
            return True
        return False

    def names(self) -> list[str]:
        """Return the files that are listed, sorted."""
        return sorted(self._read()["files"])

    def expect(self, name: str, content: bytes) -> None:
        """Announce the new content of a file before it is written."""
        values = self._read()
        values["files"][name] = [*values["files"].get(name, [])[-1:], _version(content)]
        self._write(values)

    def record(self, names: Iterable[str], forget: Iterable[str] = ()) -> None:
        """List files as they are now.

        Args:
            names: of files; those that do not exist are not listed.
            forget: files to list no more, because they are about to change.
        """
        values = self._read()
        for name in {*forget, *names}:
            values["files"].pop(name, None)
        for name in names:
            if (self._directory / name).is_file():
                values["files"][name] = [_version((self._directory / name).read_bytes())]
        self._write(values)

    def record_all(self, logs: Iterable[str]) -> None:
        """List every file of a finished run, besides its checkpoints, which have lists of their own."""
        found = [path for pattern in FINAL for path in self._directory.glob(pattern) if path.is_file()]
        final = [path.relative_to(self._directory).as_posix() for path in found if not path.name.startswith(".")]
        self.record([*LASTING, *logs, *final])

    def begin(self, logs: Iterable[str]) -> None:
        """Forget the files that a run changes until it is finished."""
        kept = {*LASTING, *logs}
        self.record((), forget=[name for name in self.names() if name not in kept])

    def problem(self, name: str, content: bytes | None = None) -> str | None:
        """Return what is wrong with a file, None if nothing is, or if it is not listed.

        Args:
            name: of the file.
            content: its bytes, where they were read already.
        """
        versions = self._read()["files"].get(name)
        found = self._compare(name, versions, content)
        if found is None:
            return None
        # If another process saved the file between our two readings, the manifest has changed: read both again.
        now = self._read()["files"].get(name)
        return found if now == versions else self._compare(name, now, None)

    def check(self, name: str, content: bytes) -> None:
        """Raise a DamagedFileError if the content of a file is not what was recorded."""
        problem = self.problem(name, content)
        if problem is not None:
            raise DamagedFileError(f"{self._directory / name} {problem}: see 'unisono verify {self._directory}'.")

    @property
    def data(self) -> str | None:
        """The fingerprint of the run's data; None where none is known."""
        return self._read().get("data")

    def save_data(self, fingerprint: str) -> None:
        """Keep the fingerprint of the run's data."""
        self._write({**self._read(), "data": fingerprint})

    def _compare(self, name: str, versions: Sequence[list[int]] | None, content: bytes | None) -> str | None:
        if versions is None:
            return None
        if content is None:
            try:
                content = (self._directory / name).read_bytes()
            except OSError as error:
                return f"cannot be read ({error.strerror})"
        if name.endswith(LOG):
            size = versions[-1][0]
            if len(content) < size:
                return f"has {len(content)} bytes, and had {size}"
            content = content[:size]
        if _version(content) in versions:
            return None
        return "is not as it was written (its checksum is wrong)"

    def _read(self) -> dict[str, Any]:
        if not self.exists:
            return {"files": {}}
        path = self._directory / MANIFEST_FILE
        try:
            values = parse_json(path.read_text(encoding="utf-8"))
            if values["sum"] != _sum(values):
                raise ValueError("its own checksum is wrong")
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DamagedFileError(
                f"{path} is damaged ({error}), so nothing can say whether the other files of the run are good: remove it to go "
                "on without its checks."
            ) from error
        return dict(values)

    def _write(self, values: Mapping[str, Any]) -> None:
        values = {**values, "files": dict(sorted(values["files"].items()))}
        values["sum"] = _sum(values)
        write_atomically(self._directory / MANIFEST_FILE, (json.dumps(values, indent=1) + "\n").encode())


def _version(content: bytes) -> list[int]:
    return [len(content), zlib.crc32(content)]


def _sum(values: Mapping[str, Any]) -> int:
    covered = {key: value for key, value in values.items() if key != "sum"}
    return zlib.crc32(json.dumps(covered, sort_keys=True).encode())
