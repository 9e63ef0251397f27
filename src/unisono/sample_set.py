"""Samples that a command or a caller names: images, folders, .npz, .npy and .parquet files, arrays, or the run's own data."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unisono.config import Config
from unisono.core.client_data import as_bytes
from unisono.core.errors import UserError
from unisono.data.datasets import load_dataset
from unisono.data.sources.images import SUFFIXES, Problem, list_images, read_readable, read_thumbnails
from unisono.data.sources.locate import reading
from unisono.data.sources.npz import read_arrays
from unisono.data.sources.parquet import read_parquet
from unisono.data.value_range import as_samples

BATCH_SIZE = 4096
"""Images read at a time, so that a large folder needs little memory."""
THUMBNAIL = 80

Source = Tensor | NDArray[Any] | str | Path
"""Samples, or a file or folder of them."""
OnError = Literal["stop", "skip"]
"""End with a list of all files that cannot be read, or leave them out."""


@dataclass(frozen=True, eq=False)
class SampleSet:
    """Samples by name; image files are read when they are needed.

    Args:
        names: as the user wrote them; row 7 of a.npz is called a.npz#7.
        folders: the first folder below the one that was named, one client each; "" where there is none.
        keys: the same sample has the same key in every set; "" where that cannot be known.
        input_shape: of one sample of the network.
        squeeze: resize images without the crop.
        bits: that image files in words of 16 bits use; None: all.
        files: one image each, or None.
        values: all samples, where they are no files.
        problems: samples that are left out because they could not be read, each with the reason.
    """

    names: tuple[str, ...]
    folders: tuple[str, ...]
    keys: tuple[str, ...]
    input_shape: tuple[int, ...]
    squeeze: bool = False
    bits: int | None = None
    files: tuple[Path, ...] | None = None
    values: Tensor | None = None
    problems: tuple[Problem, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def batches(self) -> Iterator[tuple[Tensor, list[int], list[tuple[Path, str]]]]:
        """Yield samples that can be read, their rows, and what is wrong with the files that cannot."""
        for start in range(0, len(self), BATCH_SIZE):
            rows = range(start, min(start + BATCH_SIZE, len(self)))
            if self.files is None:
                assert self.values is not None
                yield self.values[start : start + BATCH_SIZE], list(rows), []
                continue
            channels, height, width = _image_shape(self.input_shape)
            files = [self.files[row] for row in rows]
            images, kept, problems = read_readable(files, channels, (height, width), self.squeeze, bits=self.bits)
            yield images, [start + position for position in kept], problems

    def select(self, rows: Sequence[int]) -> SampleSet:
        """Return these rows as a set."""
        if len(rows) == len(self):
            return self
        return replace(
            self,
            names=tuple(self.names[row] for row in rows),
            folders=tuple(self.folders[row] for row in rows),
            keys=tuple(self.keys[row] for row in rows),
            files=None if self.files is None else tuple(self.files[row] for row in rows),
            values=None if self.values is None else self.values[list(rows)],
        )

    def thumbnails(self, rows: Sequence[int]) -> Tensor:
        """Return samples as a page shows them: uint8 images in colour, or series."""
        if self.files is not None:
            return read_thumbnails([self.files[row] for row in rows], THUMBNAIL, self.squeeze)
        assert self.values is not None
        values = self.values[list(rows)]
        if values.ndim != 4:
            return values
        bytes_ = as_bytes(values)
        return bytes_.expand(-1, 3, -1, -1) if bytes_.shape[1] == 1 else bytes_

    def equal_rows(self) -> list[list[int]]:
        """Return groups of rows whose files, or samples, are equal byte by byte."""
        by_size: dict[int, list[int]] = defaultdict(list)
        for row in range(len(self)):
            by_size[self.files[row].stat().st_size if self.files is not None else 0].append(row)
        groups: dict[bytes, list[int]] = defaultdict(list)
        for rows in by_size.values():
            for row in rows if len(rows) > 1 else ():
                groups[hashlib.sha256(self._bytes(row)).digest()].append(row)
        return sorted(rows for rows in groups.values() if len(rows) > 1)

    def _bytes(self, row: int) -> bytes:
        if self.files is not None:
            return self.files[row].read_bytes()
        assert self.values is not None
        return self.values[row].numpy().tobytes()


def gather(source: Source, input_shape: tuple[int, ...], squeeze: bool = False, bits: int | None = None) -> SampleSet:
    """Return what a caller names.

    Args:
        source: an array of samples, or an image, a folder of images or a file of arrays.
        input_shape: of one sample of the network.
        squeeze: resize images without the crop.
        bits: that images in words of 16 bits use; None: all.
    """
    if isinstance(source, Tensor | np.ndarray):
        return _of_values(as_samples(source, input_shape, bits), "", input_shape)
    return _of_path(Path(source), input_shape, squeeze, bits)


def own_data(config: Config, input_shape: tuple[int, ...]) -> SampleSet:
    """Return the samples that a run was trained on; of images in folders and .npz files, the held-out ones too.

    Args:
        config: of the run.
        input_shape: of one sample of the network.
    """
    if config.data.dataset in ("folder", "npz") and config.data.path is not None:
        path = Path(config.data.path).expanduser()
        # Names are as short as the user would write them.
        shorter = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return gather(shorter, input_shape, config.data.squeeze, config.data.bits)
    data = load_dataset(config.data)
    owners = None if data.owners is None else [data.owner_names[owner] for owner in data.owners.tolist()]
    return _of_values(as_samples(data.samples, input_shape), data.name, input_shape, owners)


def _of_path(path: Path, input_shape: tuple[int, ...], squeeze: bool, bits: int | None) -> SampleSet:
    resolved = path.resolve()
    if path.is_file() and (path.suffix == ".npz" or (path.suffix == ".npy" and _holds_samples(path, input_shape))):
        data = read_arrays(path)
        owners = None if data.owners is None else [data.owner_names[owner] for owner in data.owners.tolist()]
        found = _of_values(as_samples(data.samples, input_shape, bits), str(path), input_shape, owners)
        return replace(found, keys=tuple(f"{resolved}#{row}" for row in range(len(found))))
    if path.is_file() and path.suffix.lower() == ".parquet":
        stored = read_parquet(path, input_shape, squeeze, bits)
        names = tuple(f"{path}#{row}" for row in stored.rows)
        keys = tuple(f"{resolved}#{row}" for row in stored.rows)
        folders = stored.owners or ("",) * len(names)
        return SampleSet(names, folders, keys, input_shape, values=stored.samples, problems=stored.problems)
    if path.is_file() and path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path} is neither an image ({', '.join(sorted(SUFFIXES))}) nor an .npz or .parquet file.")
    _image_shape(input_shape)
    files = list_images([path])
    parts = [file.relative_to(path).parts[:-1] for file in files]
    parted = bool(parts) and {part[:1] for part in parts} == {("train",), ("test",)}
    folders = tuple((part[parted:] or ("",))[0] for part in parts)
    keys = tuple(str(file.resolve()) for file in files)
    return SampleSet(tuple(map(str, files)), folders, keys, input_shape, squeeze, bits, files=tuple(files))


def _holds_samples(path: Path, input_shape: tuple[int, ...]) -> bool:
    """Return whether an .npy file holds many samples, not one image."""
    with reading(path):
        return bool(np.load(path, mmap_mode="r", allow_pickle=False).ndim > len(input_shape))


def _of_values(values: Tensor, name: str, input_shape: tuple[int, ...], folders: Sequence[str] | None = None) -> SampleSet:
    names = tuple(f"{name}#{row}" for row in range(len(values)))
    empty = ("",) * len(values)
    return SampleSet(names, empty if folders is None else tuple(folders), empty, input_shape, values=values)


def _image_shape(input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(input_shape) != 3:
        raise UserError(f"Images need an input shape of channels, height and width, got {input_shape}.")
    channels, height, width = input_shape
    return channels, height, width
