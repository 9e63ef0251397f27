"""Files that a run leaves for its report, in the folder ``report/`` of its directory."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exc
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.core.config import parse_json
from unisono.runs.directory import RunDirectory
from unisono.runs.files import DamagedFileError, explained, write_atomically
from unisono.runs.manifest import PAGES


@dataclass(frozen=True)
class Snapshot:
    """The points of the map in one round.

    Args:
        features: shape (num_points, feature_dim).
        clusters: of every point, -1 where the method has none yet, shape (num_points,).
        confidence: of the cluster, shape (num_points,).
        num_clusters: how many there are.
    """

    features: NDArray[np.float16]
    clusters: NDArray[np.int64]
    confidence: NDArray[np.float32]
    num_clusters: int


class ReportFiles:
    """Files of a report: ``about.json``, ``split.json``, ``points.json``, ``samples.json``, ``round-000003.npz``, and others.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.path = directory.path / "report"
        self._manifest = directory.manifest

    def read(self, name: str) -> dict[str, Any] | None:
        """Return what ``write`` wrote, None where there is nothing that can be read."""
        try:
            content = (self.path / f"{name}.json").read_bytes()
            self._manifest.check(f"report/{name}.json", content)
            return dict(parse_json(content))
        except (OSError, ValueError, TypeError, DamagedFileError):
            return None

    def drop_damaged(self) -> list[str]:
        """Remove files that cannot be used, so that they are made again from the data; return their names."""
        dropped = []
        for path in sorted([*self.path.glob("*.json"), *self.path.glob("round-*.npz")]):
            good = self.read(path.stem) is not None if path.suffix == ".json" else self._is_good(path)
            if not good:
                with explained(path):
                    path.unlink(missing_ok=True)
                dropped.append(f"report/{path.name}")
        listed = [name for name in self._manifest.names() if name.startswith("report/") or name in PAGES]
        if listed:  # what is made anew is listed again by ``list_files``
            self._manifest.record((), forget=listed)
        return dropped

    def list_files(self) -> None:
        """Renew what the manifest of a finished run says about the report's files."""
        if "environment.json" in self._manifest.names():
            self._manifest.record([*PAGES, *(f"report/{path.name}" for path in self.path.glob("*") if path.is_file())])

    def write(self, name: str, values: Mapping[str, Any]) -> None:
        """Replace ``name.json``."""
        write_atomically(self.path / f"{name}.json", json.dumps(values, separators=(",", ":")).encode())

    def rounds(self) -> list[int]:
        """Return numbers of rounds done that have a snapshot, ascending."""
        return sorted(int(path.stem.removeprefix("round-")) for path in self.path.glob("round-*.npz"))

    def save(self, round: int, snapshot: Snapshot) -> None:
        """Write the snapshot after this many rounds."""
        content = io.BytesIO()
        np.savez(
            content,
            features=snapshot.features,
            clusters=snapshot.clusters,
            confidence=snapshot.confidence,
            num_clusters=snapshot.num_clusters,
        )
        write_atomically(self._snapshot(round), content.getvalue())

    def load(self, round: int) -> Snapshot:
        """Return the snapshot after this many rounds."""
        return _snapshot_in(self._snapshot(round))

    def _is_good(self, path: Path) -> bool:
        try:
            self._manifest.check(f"report/{path.name}", path.read_bytes())
            _snapshot_in(path)
        except Exception:  # a damaged archive may raise anything
            return False
        return True

    @contextmanager
    def errors_logged(self) -> Iterator[None]:
        """Let no problem with a report end a run: write it to ``errors.txt``, and the report says so."""
        try:
            yield
        except Exception:
            # On a full disk nothing can be said; what the run itself writes next will say it.
            with suppress(OSError):
                self.path.mkdir(parents=True, exist_ok=True)
                with (self.path / "errors.txt").open("a", encoding="utf-8") as file:
                    file.write(format_exc() + "\n")

    @property
    def errors(self) -> str:
        """Tracebacks of what went wrong."""
        path = self.path / "errors.txt"
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def clear_errors(self) -> None:
        """Remove the tracebacks, before the report is made anew."""
        path = self.path / "errors.txt"
        with explained(path):
            path.unlink(missing_ok=True)

    def _snapshot(self, round: int) -> Path:
        return self.path / f"round-{round:06d}.npz"


def _snapshot_in(path: Path) -> Snapshot:
    with np.load(path) as content:
        return Snapshot(content["features"], content["clusters"], content["confidence"], int(content["num_clusters"]))
