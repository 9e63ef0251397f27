"""Samples in files that are mapped into memory: which they are, and how their pages are given back.

A page that was read stays in the memory of a process, and counts as its own, until the machine runs short. Whoever reads many
rows says so, and after some megabytes the pages are given back; the operating system still holds them as a cache.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unisono.core.errors import UserError

BUDGET = 64 << 20
"""Bytes that may be read before pages are given back."""
AROUND = 64 << 10
"""Bytes that the operating system maps around one that is read."""
LARGE = 2 << 30
"""Samples beyond this many bytes are looked at in part where only a check or a mean is wanted."""

_maps: list[tuple[int, int, mmap.mmap, Path]] = []
"""First and last address of each file, the file and its path; open as long as the process."""
_read = 0


def open_mapped(path: Path) -> Tensor:
    """Return the array of an .npy file as a tensor whose rows are read from disk when they are used; never write to it."""
    array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    if isinstance(array, np.memmap):
        start = array.ctypes.data
        _maps.append((start, start + array.nbytes, array._mmap, path.absolute()))  # type: ignore[attr-defined]
    return torch.from_numpy(np.asarray(array))


def room(num_rows: int, width: int) -> Tensor:
    """Return a tensor of floats to be filled; a large one lies in a temporary file, so that it needs no memory of its own.

    Args:
        num_rows: its length.
        width: of a row.
    """
    num_bytes = num_rows * width * 4
    if num_bytes <= LARGE // 2:
        return torch.empty(num_rows, width)
    with TemporaryFile() as file:
        try:
            if hasattr(os, "posix_fallocate"):  # a disk that is full later on would kill the process
                os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError as error:
            raise UserError(
                f"There is no room for {num_bytes / 1e9:.1f} GB of features in {gettempdir()} ({error.strerror}): make room, "
                "or name another directory in the environment variable TMPDIR."
            ) from error
        return torch.from_numpy(np.asarray(np.memmap(file, np.float32, "w+", shape=(num_rows, width))))


def is_mapped(samples: Tensor) -> bool:
    """Return whether rows of the tensor are read from a file."""
    return any(start <= samples.data_ptr() < end for start, end, _, _ in _maps)


@dataclass(frozen=True)
class Reference:
    """A tensor in a mapped file, as it is sent to another process.

    Args:
        path: of the .npy file.
        offset: of the tensor's first value among those of the file.
        shape: of the tensor.
        stride: of the tensor, in values.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def open(self) -> Tensor:
        """Map the file and return the tensor."""
        return torch.as_strided(open_mapped(self.path), self.shape, self.stride, self.offset)


def referred(samples: Tensor) -> Tensor | Reference:
    """Return a reference in place of a tensor in a mapped file; others as they are."""
    for start, end, _, path in _maps:
        if start <= samples.data_ptr() < end:
            offset = (samples.data_ptr() - start) // samples.element_size()
            return Reference(path, offset, tuple(samples.shape), samples.stride())
    return samples


def note_read(samples: Tensor, num_rows: int) -> None:
    """Count rows that were read; give the pages of all mapped files back when they are many.

    Args:
        samples: what was read from, shape (num, ...).
        num_rows: how many of its rows.
    """
    global _read  # noqa: PLW0603 - pages belong to the process
    if not _maps or not is_mapped(samples):
        return
    _read += num_rows * (samples[0].numel() * samples.element_size() + AROUND)
    if _read >= BUDGET:
        _read = 0
        for _, _, mapping, _ in _maps:
            mapping.madvise(mmap.MADV_DONTNEED)


def batches(samples: Tensor, batch_size: int, rows: Tensor | None = None) -> Iterator[Tensor]:
    """Yield all samples, or these rows of them, batch by batch.

    Args:
        samples: shape (num, ...).
        batch_size: samples of a batch.
        rows: sorted positions; None for all.
    """
    parts = samples.split(batch_size) if rows is None else (samples[part] for part in rows.split(batch_size))
    for batch in parts:
        yield batch
        note_read(samples, len(batch))


def some_chunks(samples: Tensor, num_rows: int) -> Iterator[Tensor]:
    """Yield all rows in turn or, of more than 2 GB, evenly spaced ones that fill an eighth of it.

    Args:
        samples: shape (num, ...).
        num_rows: rows of a chunk.
    """
    num_bytes = samples.numel() * samples.element_size()
    step = 1 if num_bytes <= LARGE else -(-num_bytes // (LARGE // 8))
    for start in range(0, len(samples), num_rows * step):
        chunk = samples[start : start + num_rows * step : step]
        yield chunk
        note_read(samples, len(chunk))
