"""Loading of the samples that a command is given as files, and the list of those that cannot be read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from unisono.loaded import LoadedRun
    from unisono.sample_set import OnError

UNREADABLE = "unreadable.txt"


def read_samples(run: LoadedRun, file: Path, on_error: str | None) -> tuple[list[str], Tensor]:
    """Return names and samples of what a file or folder holds; row 7 of a.npz is called a.npz#7.

    Args:
        run: whose samples have the right shape.
        file: an image, a folder of images, or an .npz file with an array 'x'.
        on_error: "stop" or "skip" for images that cannot be read; None as the run did.
    """
    from unisono.sample_set import gather
    from unisono.search import embed_all

    samples = gather(file, run.method.info.input_shape, run.config.data.squeeze)
    found = embed_all(samples, lambda batch: batch, chosen_on_error(on_error) or run.config.data.on_error)
    note_unreadable(found.problems)
    return list(found.samples.names), found.features


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
        list_unreadable(problems)
        print(f"note: {len(problems):,} files cannot be read and are left out; {UNREADABLE} lists them", file=sys.stderr)


def list_unreadable(problems: Sequence[tuple[Path, str]]) -> None:
    """Write files and reasons into the current folder."""
    from unisono.runs.files import write_atomically

    write_atomically(Path(UNREADABLE), "".join(f"{file}: {reason}\n" for file, reason in problems).encode())
