"""The linear layers of a warm start: each evaluation starts from the layers of the last one, also after a kill and a resume."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.core.wire import from_bytes, to_bytes
from unisono.evaluation.linear import LinearClassifier
from unisono.runs.checkpoint import Checkpoints
from unisono.runs.files import write_atomically


class ProbeLayers:
    """One small file per evaluation, as long as a checkpoint may need it.

    A run that goes on from a checkpoint takes the file of the last evaluation at or before it. Later files are written again,
    bit-identical. Each ends with a checksum.

    Args:
        directory: where the files lie.
        checkpoints: those of the run.
    """

    def __init__(self, directory: Path, checkpoints: Checkpoints) -> None:
        self._directory = directory
        self._checkpoints = checkpoints

    def load(self, round: int) -> dict[str, LinearClassifier]:
        """Return the layers of the last evaluation up to this round, by probe; none if there was no evaluation."""
        before = [number for number in self.rounds() if number <= round]
        if not before:
            return {}
        path = self._path(before[-1])
        try:
            groups = from_bytes(path.read_bytes()).groups
            return {name: LinearClassifier(**tensors) for name, tensors in groups.items()}
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}): remove it, and linear probes start anew.") from error

    def save(self, round: int, layers: Mapping[str, LinearClassifier]) -> None:
        """Write the layers of an evaluation, and remove those that no checkpoint needs any more."""
        groups = {name: {"weight": x.weight, "bias": x.bias, "classes": x.classes} for name, x in layers.items()}
        write_atomically(self._path(round), to_bytes(Payload(groups)))
        oldest = min(self._checkpoints.rounds(), default=0)
        for number in [number for number in self.rounds() if number <= oldest][:-1]:
            with suppress(OSError):  # a file too many harms nobody
                self._path(number).unlink()

    def rounds(self) -> list[int]:
        """Return the rounds whose layers are kept, ascending."""
        return sorted(int(path.stem.removeprefix("round-")) for path in self._directory.glob("round-*.layers"))

    def _path(self, round: int) -> Path:
        return self._directory / f"round-{round:06d}.layers"
