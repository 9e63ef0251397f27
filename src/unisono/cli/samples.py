"""The list of files that a command was given and that cannot be read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unisono.sample_set import OnError

UNREADABLE = "unreadable.txt"


def chosen_on_error(value: str | None) -> OnError | None:
    """Return the value of --on-error; refuse any that does not exist."""
    from unisono.core.errors import UserError

    known: dict[str | None, OnError | None] = {None: None, "stop": "stop", "skip": "skip"}
    if value not in known:
        raise UserError(f"--on-error must be stop or skip, got {value!r}.")
    return known[value]


def note_unreadable(problems: Sequence[tuple[Path, str]]) -> None:
    """Say on stderr how many files are left out, and list them in the current folder."""
    if problems:
        from unisono.core.errors import left_out

        list_unreadable(problems)
        print(f"note: {left_out(len(problems))}; {UNREADABLE} lists them", file=sys.stderr)


def list_unreadable(problems: Sequence[tuple[Path, str]]) -> None:
    """Write files and reasons into the current folder."""
    from unisono.runs.files import write_atomically

    write_atomically(Path(UNREADABLE), "".join(f"{file}: {reason}\n" for file, reason in problems).encode())
