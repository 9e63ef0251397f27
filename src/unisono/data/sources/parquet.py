"""Samples in a parquet file: images as their bytes, as Hugging Face stores them, or columns of numbers (extra ``hub``)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unisono.core.errors import UserError
from unisono.core.progress import tell
from unisono.data.sources.convert import at_depth
from unisono.data.sources.images import DEPTHS, Packed, Problem, read_readable
from unisono.data.sources.locate import reading
from unisono.data.value_range import as_samples

NO_SAMPLES = ("label", "labels", "y", "client", "owner", "site", "index", "id", "__index_level_0__")
"""Columns of numbers that are no values of a sample."""
OWNERS = ("client", "owner", "site")
ROWS = 1024
"""Rows read at a time."""


@dataclass(frozen=True)
class ParquetSamples:
    """Samples of a parquet file.

    Args:
        samples: those that can be read, as the network takes them.
        rows: their rows in the file.
        problems: rows that hold no readable image, each with the reason.
        owners: the client of each sample; None where no column says.
    """

    samples: Tensor
    rows: tuple[int, ...]
    problems: tuple[Problem, ...]
    owners: tuple[str, ...] | None


def read_parquet(path: Path, input_shape: tuple[int, ...], squeeze: bool = False, bits: int | None = None) -> ParquetSamples:
    """Return the samples of a parquet file.

    They lie in the only column of image files (bytes, or a struct with the field ``bytes``), else in the only column of lists
    of numbers, else in as many columns of numbers as a sample has values.

    Args:
        path: of the file.
        input_shape: of one sample of the network.
        squeeze: resize images without the crop.
        bits: that images in words of 16 bits use; None: all.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"Reading {path} needs the extra 'hub': pip install 'unisono[hub]'.") from error
    with reading(path), pyarrow.parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        names = _columns(schema, path, input_shape)
        owner = next((name for name in OWNERS if name in schema.names), None)
        owners = None if owner is None else file.read([owner])[owner].to_pylist()
        if owners is not None and None in owners:
            raise UserError(f"{path} names no {owner} in row {owners.index(None)}: fill the column or take it away.")
        is_image = _is_image(schema.field(names[0]).type)
        if is_image and len(input_shape) != 3:
            raise UserError(f"{path} holds images, and the network takes samples of shape {input_shape}.")
        if is_image:
            contents, number = _column(file, names[0]), file.metadata.num_rows
            samples, rows, problems = _images(path, contents, number, input_shape, squeeze, bits)
        else:
            parts = [_numbers(path, names, table, input_shape) for table in _tables(file, names)]
            # What a number means is decided by all of them.
            samples = as_samples(np.concatenate(parts), input_shape, bits) if parts else torch.empty(0, *input_shape)
            rows, problems = list(range(len(samples))), []
    known = None if owners is None else tuple(str(owners[row]) for row in rows)
    return ParquetSamples(samples, tuple(rows), tuple(problems), known)


def _columns(schema: Any, path: Path, input_shape: Sequence[int]) -> list[str]:
    """Return the columns that hold the samples."""
    kinds = {
        "columns of images": [field.name for field in schema if _is_image(field.type)],
        "columns of lists of numbers": [field.name for field in schema if _is_numbers(field.type, nested=True)],
    }
    for kind, names in kinds.items():
        if len(names) == 1:
            return names
        if names:
            raise UserError(f"{path} has {len(names)} {kind} ({', '.join(names)}): write a file with the one that is meant.")
    names = [field.name for field in schema if _is_numbers(field.type, nested=False) and field.name.lower() not in NO_SAMPLES]
    if len(names) != math.prod(input_shape):
        raise UserError(
            f"{path} has no column of images or of lists of numbers, and {len(names)} columns of numbers where a sample has "
            f"{math.prod(input_shape)} values; its columns are {', '.join(schema.names[:10])}."
        )
    return names


def _is_image(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _is_image(kind.field("bytes").type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_numbers(kind: Any, nested: bool) -> bool:
    from pyarrow import types

    if isinstance(kind, _extension_type()):
        return _is_numbers(kind.storage_type, nested)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return nested and (_is_numbers(kind.value_type, True) or _is_numbers(kind.value_type, False))
    return not nested and bool(types.is_integer(kind) or types.is_floating(kind))


def _extension_type() -> Any:
    import pyarrow

    return pyarrow.BaseExtensionType


def _tables(file: Any, names: list[str]) -> Iterator[Any]:
    """Yield the columns in parts, and say how far reading has come."""
    done = 0
    for table in file.iter_batches(ROWS, columns=names):
        yield table
        done += len(table)
        tell("reading samples", done, file.metadata.num_rows)


def _column(file: Any, name: str) -> Iterator[list[Any]]:
    return (table.column(0).to_pylist() for table in _tables(file, [name]))


def _images(
    path: Path, parts: Iterator[list[Any]], number: int, input_shape: tuple[int, ...], squeeze: bool, bits: int | None
) -> tuple[Tensor, list[int], list[Problem]]:
    """Return the images of all rows that can be read, in the depth of the deepest, their rows, and what is wrong."""
    channels, height, width = input_shape
    images = torch.empty(number, *input_shape, dtype=torch.uint8)
    rows: list[int] = []
    problems: list[Problem] = []
    start = 0
    for part in parts:
        contents = [value["bytes"] if isinstance(value, dict) else value for value in part]
        packed = [Packed(Path(f"{path}#{start + place}"), content or b"") for place, content in enumerate(contents)]
        found, kept, bad = read_readable(packed, channels, (height, width), squeeze, bits=bits)
        if DEPTHS.index(found.dtype) > DEPTHS.index(images.dtype):
            images = at_depth(images, found.dtype)
        images[len(rows) : len(rows) + len(kept)] = at_depth(found, images.dtype)
        rows += [start + place for place in kept]
        problems += bad
        start += len(part)
    return images[: len(rows)], rows, problems


def _numbers(path: Path, names: list[str], table: Any, input_shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the values of a part of the file whose columns are numbers."""
    if len(names) == 1 and _is_numbers(table.schema.field(0).type, nested=True):
        values = _array(path, names[0], table.column(0))
    else:
        values = np.stack([column.to_numpy(zero_copy_only=False) for column in table.columns], axis=1)
    if values.ndim != len(input_shape) + 1:
        if math.prod(values.shape[1:]) != math.prod(input_shape):
            raise UserError(
                f"A row of {path} has {math.prod(values.shape[1:])} numbers, and a sample of the network "
                f"{math.prod(input_shape)} ({' x '.join(map(str, input_shape))})."
            )
        return values.reshape(-1, *input_shape)
    return values


def _array(path: Path, name: str, column: Any) -> NDArray[Any]:
    """Return a column of lists as an array with an axis for each level; rows must be equally long."""
    shape, values = [len(column)], column
    while _is_numbers(values.type, nested=True):
        values = values.storage if isinstance(values.type, _extension_type()) else values
        lengths = values.value_lengths().unique().to_pylist()
        if len(lengths) > 1 or None in lengths:
            raise UserError(f"The rows of {name} in {path} have different lengths: cut them to one.")
        shape += lengths or [0]
        values = values.flatten()
    return np.array(values.to_numpy(zero_copy_only=False)).reshape(shape)
