"""Errors for users: one sentence that names the field, the value and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class UserError(Exception):
    """Error in the input, not in the program; the message is the whole explanation."""


class MissingDataError(UserError):
    """A data set is not on this machine; nothing else is wrong."""


class UnreadableImagesError(UserError):
    """Some image files cannot be read; the sentence names the first few.

    Args:
        problems: each file and the reason.
        num_files: how many files were tried.
    """

    NUM_NAMED = 5

    def __init__(self, problems: Sequence[tuple[Path, str]], num_files: int) -> None:
        self.problems = tuple(problems)
        self.num_files = num_files
        if len(problems) == 1:
            super().__init__(f"{problems[0][0]} is not a readable image: {problems[0][1]}.{self._remedy(num_files)}")
            return
        named = "; ".join(f"{file} ({reason})" for file, reason in problems[: self.NUM_NAMED])
        more = f"; and {len(problems) - self.NUM_NAMED:,} more" if len(problems) > self.NUM_NAMED else ""
        found = f"{len(problems):,} of {num_files:,} files are not readable images: {named}{more}."
        super().__init__(f"{found}{self._remedy(num_files)}")

    def __reduce__(self) -> tuple[type[UnreadableImagesError], tuple[object, ...]]:
        """Return what another process needs to make the same error."""
        return type(self), (self.problems, self.num_files)

    @staticmethod
    def _remedy(num_files: int) -> str:
        return ' Remove them, or leave them out by data.on_error = "skip" (--on-error skip).' if num_files > 1 else ""


def left_out(number: int, what: str = "file") -> str:
    """Return ``2 files cannot be read and are left out``."""
    return (
        f"{number:,} {what} cannot be read and is left out"
        if number == 1
        else (f"{number:,} {what}s cannot be read and are left out")
    )


class MethodError(UserError):
    """The code of a method is at fault, for every client alike; it ends the run."""


class DivergedError(ValueError):
    """A value of an update that is not finite or beyond all scale: training has diverged, or a client lies."""


def describe(error: BaseException) -> str:
    """Return kind and text of an error in one line; also of one whose text cannot be had."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, whose text cannot be read"


class ClientError(Exception):
    """A client could not answer; names round, phase and client, and carries the original traceback. Text counts rounds from 1.

    Args:
        round: the round in which the client was asked, counted from 0.
        phase: the phase of that round.
        client_id: the client that failed.
        reason: one sentence.
        details: the traceback as text, empty when there is none.
    """

    def __init__(self, round: int, phase: str, client_id: int, reason: str, details: str = "") -> None:
        super().__init__(round, phase, client_id, reason, details)
        self.round = round
        self.phase = phase
        self.client_id = client_id
        self.reason = reason
        self.details = details

    @property
    def has_diverged(self) -> bool:
        """True if the client's training diverged, as far as its reason tells."""
        return self.reason.startswith(DivergedError.__name__)

    def __str__(self) -> str:
        return f"round {self.round + 1}, phase {self.phase}, client {self.client_id}: {self.reason}"
