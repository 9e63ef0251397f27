"""Images decoded once into a file on disk, for more of them than fit into memory.

The file is a plain .npy array at the chosen size. Its name is a hash of paths, sizes and times of the images and of options.
It is written under a temporary name, chunk by chunk, by several processes; an index says which chunks are done, so that a kill
costs the chunks at work. Forked workers share its pages, and whoever else opens it shares the operating system's cache.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unisono.core.config import parse_json
from unisono.core.errors import UnreadableImagesError, UserError
from unisono.core.mapped import open_mapped
from unisono.core.progress import tell
from unisono.data.sources.convert import at_depth
from unisono.data.sources.images import DEPTHS, Problem, Size, read_image

FORMAT = 1
CHUNK_BYTES = 32 << 20
MOST_FILES = 1024
MOST_PROCESSES = 16
NUMPY = {torch.uint8: np.uint8, torch.uint16: np.uint16, torch.float32: np.float32}


@dataclass(frozen=True)
class Wanted:
    """Shape, type and treatment that images are to have.

    Args:
        shape: of each, (channels, height, width).
        dtype: uint8, uint16 or float32.
        squeeze: resize without the crop.
        resized: whether other sizes are cropped and resized; otherwise they are refused.
        shrunk: whether deeper images are cut to the type; otherwise they are refused.
        bits: that words of 16 bits use; None: all.
    """

    shape: tuple[int, int, int]
    dtype: torch.dtype
    squeeze: bool
    resized: bool
    shrunk: bool
    bits: int | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of one image."""
        return int(np.prod(self.shape)) * self.dtype.itemsize


def cached_images(files: Sequence[Path], wanted: Wanted, folder: Path, skip: bool) -> tuple[Tensor, list[int], list[Problem]]:
    """Return the images as ``read_readable`` does, in a file that is made at the first call and mapped into memory.

    Args:
        files: of images.
        wanted: what they are to become.
        folder: where the file is kept.
        skip: leave images out that cannot be read; otherwise they are an error.
    """
    key = _key(files, wanted)
    target, notes = folder / f"{key}.npy", folder / f"{key}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _Lock(folder / f"{key}.lock"):
            if not target.exists():
                problems = _fill(files, wanted, folder / f"{key}.partial")
                bad = {position for position, _ in problems}
                if problems and (not skip or len(bad) == len(files)):
                    raise UnreadableImagesError([(files[position], reason) for position, reason in problems], len(files))
                notes.write_text(json.dumps(problems), encoding="utf-8")
                _finish(folder / f"{key}.partial", sorted(bad), target)
        problems = [(int(position), str(reason)) for position, reason in parse_json(notes.read_text(encoding="utf-8"))]
    except OSError as error:
        raise UserError(
            f"Images cannot be kept in {folder} ({error.strerror or error}): make room there, set UNISONO_CACHE to another "
            "folder, or raise data.memory_share."
        ) from error
    bad = {position for position, _ in problems}
    kept = [position for position in range(len(files)) if position not in bad]
    return open_mapped(target), kept, [(files[position], reason) for position, reason in problems]


def _key(files: Sequence[Path], wanted: Wanted) -> str:
    found = hashlib.sha256(f"{FORMAT} {wanted}".encode())
    for file in files:
        facts = file.stat() if file.exists() else None
        size, time = (facts.st_size, facts.st_mtime_ns) if facts else (0, 0)
        found.update(f"\n{file.absolute()}\0{size}\0{time}".encode(errors="surrogateescape"))
    return found.hexdigest()[:32]


def _fill(files: Sequence[Path], wanted: Wanted, partial: Path) -> list[tuple[int, str]]:
    """Decode all chunks that are not done yet; return positions of unreadable files and why."""
    per_chunk = max(1, min(MOST_FILES, CHUNK_BYTES // wanted.num_bytes))
    offset = _allocate(partial, len(files), wanted)
    index = partial.with_name(partial.name + ".index")
    done, problems = _read_index(index)
    starts = [start for start in range(0, len(files), per_chunk) if start not in done]
    jobs = [(start, list(files[start : start + per_chunk]), wanted, partial, offset) for start in starts]
    num_done = len(files) - sum(len(job[1]) for job in jobs)
    tell("reading images", num_done, len(files))
    number = min(_num_cores(), MOST_PROCESSES, len(jobs))
    with index.open("a", encoding="utf-8") as log:
        for start, count, found in _decoded(jobs, number):
            log.write(json.dumps([start, found]) + "\n")
            log.flush()
            problems += found
            num_done += count
            tell("reading images", num_done, len(files))
    return sorted(problems)


def _decoded(jobs: list[Any], number: int) -> Any:
    if number <= 1 or multiprocessing.current_process().daemon:
        yield from map(_decode, jobs)
        return
    with multiprocessing.get_context("fork").Pool(number, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from pool.imap_unordered(_decode, jobs)


def _decode(job: tuple[int, list[Path], Wanted, Path, int]) -> tuple[int, int, list[tuple[int, str]]]:
    """Write a chunk of images into the file; return its start, its length and what could not be read."""
    start, files, wanted, partial, offset = job
    _, *size = wanted.shape
    rows = torch.zeros(len(files), *wanted.shape, dtype=wanted.dtype)
    problems = []
    fitted: Size | None = (size[0], size[1]) if wanted.resized else None
    for position, file in enumerate(files):
        try:
            image = read_image(file, wanted.shape[0], fitted, wanted.squeeze, wanted.bits)
        except UnreadableImagesError as error:
            problems.append((start + position, error.problems[0][1]))
            continue
        if tuple(image.shape) != wanted.shape:
            raise UserError(f"{file} has the shape {tuple(image.shape)}, and others {wanted.shape}: set data.image_size.")
        if DEPTHS.index(image.dtype) > DEPTHS.index(wanted.dtype) and not wanted.shrunk:
            raise UserError(f"{file} holds {image.dtype}, and the first images {wanted.dtype}: set data.depth.")
        rows[position] = at_depth(image, wanted.dtype)
    with partial.open("r+b") as content:
        content.seek(offset + start * wanted.num_bytes)
        content.write(rows.numpy().data)
    return start, len(files), problems


def _allocate(partial: Path, number: int, wanted: Wanted) -> int:
    """Make a file with a header and room for all images, where there is none; return where they begin."""
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(NUMPY[wanted.dtype])), "fortran_order": False}
    if not partial.exists():
        new = partial.with_name(partial.name + ".new")
        with new.open("wb") as content:
            np.lib.format.write_array_header_1_0(content, {**header, "shape": (number, *wanted.shape)})
            content.truncate(content.tell() + number * wanted.num_bytes)
        partial.with_name(partial.name + ".index").unlink(missing_ok=True)
        new.rename(partial)
    return partial.stat().st_size - number * wanted.num_bytes


def _finish(partial: Path, bad: Sequence[int], target: Path) -> None:
    """Give the file its name; with rows to leave out, another file that is written first."""
    if bad:
        _copy_without(partial, bad).rename(target)
        partial.unlink()
    else:
        partial.rename(target)
    partial.with_name(partial.name + ".index").unlink(missing_ok=True)


def _copy_without(partial: Path, bad: Sequence[int]) -> Path:
    rows = np.load(partial, mmap_mode="r")
    kept = np.setdiff1d(np.arange(len(rows)), bad)
    new = partial.with_name(partial.name + ".new")
    with new.open("wb") as content:
        header = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(content, {**header, "shape": (len(kept), *rows.shape[1:])})
        for part in np.array_split(kept, max(1, rows[:1].nbytes * len(kept) // CHUNK_BYTES)):
            content.write(np.ascontiguousarray(rows[part]).data)
    return new


def _read_index(index: Path) -> tuple[set[int], list[tuple[int, str]]]:
    done: set[int] = set()
    problems: list[tuple[int, str]] = []
    for line in index.read_text(encoding="utf-8").splitlines() if index.exists() else ():
        try:
            start, found = parse_json(line)
        except ValueError:  # the line at which a kill struck
            continue
        if start not in done:
            done.add(start)
            problems += [(int(position), str(reason)) for position, reason in found]
    return done, problems


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Lock:
    """One process at a time makes a file; the others wait for it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def __enter__(self) -> None:
        import fcntl

        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()
