"""Image files and Pillow images to tensors of one shape and depth."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from unisono.core.client_data import as_bytes
from unisono.core.errors import UnreadableImagesError, UserError
from unisono.data.sources.convert import at_depth, resize, with_channels
from unisono.data.sources.deep import DICOM, TIFF, MissingPackageError, read_deep
from unisono.data.value_range import widened

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".pbm", ".npy"}) | TIFF | DICOM
DAMAGED = (UserError, OSError, SyntaxError, ValueError, EOFError, struct.error, TypeError, LookupError, ArithmeticError)
"""Errors that decoders raise at damaged files."""
DEPTHS = (torch.uint8, torch.uint16, torch.float32)
"""Types of images, each holding all values of those before it."""
BITS_PER_SAMPLE = 258
"""The tag of TIFF."""
Size = tuple[int, int]
"""Height and width."""
Problem = tuple[Path, str]
"""A file that cannot be read, and the reason."""


@dataclass(frozen=True)
class Packed:
    """The bytes of an image file that lie in another file.

    Args:
        path: a name for messages, such as a.parquet#7.
        content: of the file.
    """

    path: Path
    content: bytes


File = Path | Packed


def list_images(paths: Iterable[Path | str]) -> list[Path]:
    """Return all image files among the paths and in the folders among them, each folder in order of name.

    Hidden files and folders (``.name``) are passed over.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            in_folder = [file for file in _walk(path) if file.suffix.lower() in SUFFIXES]
            if not in_folder:
                raise UserError(f"The folder {path} holds no images ({', '.join(sorted(SUFFIXES))}).")
            found.extend(sorted(in_folder))
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"There is no file or folder {path}.")
    return found


def other_files(folder: Path) -> list[Path]:
    """Return the files in a folder that ``list_images`` passes over because their names are not those of images.

    Args:
        folder: any.
    """
    return sorted(file for file in _walk(folder) if file.suffix.lower() not in SUFFIXES)


def read_images(files: Sequence[Path], channels: int, size: Size | None, squeeze: bool = False) -> Tensor:
    """Return the files as one tensor; raise one error about all that cannot be read.

    Args:
        files: image files.
        channels: 1 for grey, 3 for RGB, or as many as the files have.
        size: what they are centre-cropped and resized to; None where all must have the size of the first.
        squeeze: resize without the crop.
    """
    images, _, problems = read_readable(files, channels, size, squeeze)
    if problems:
        raise UnreadableImagesError(problems, len(files))
    return images


def read_readable(
    files: Sequence[File],
    channels: int | None,
    size: Size | None,
    squeeze: bool = False,
    dtype: torch.dtype | None = None,
    bits: int | None = None,
    on_read: Callable[[int], None] = lambda number: None,
) -> tuple[Tensor, list[int], list[Problem]]:
    """Return the images that can be read, their positions among the files, and what is wrong with each of the others.

    Images are uint8, uint16 or floats in [0, 1], of shape (num, channels, height, width).

    Args:
        files: image files.
        channels: 1 for grey, 3 for RGB, or as many as the files have; None takes those of the first readable file.
        size: what they are centre-cropped and resized to; None where all must have the size of the first readable one.
        squeeze: resize without the crop.
        dtype: of the result; that of the deepest file where None.
        bits: as for ``read_image``.
        on_read: told how many files are done after each.
    """
    problems: dict[int, str] = {}

    def read(position: int) -> Tensor | None:
        try:
            return read_image(files[position], channels, size, squeeze, bits)
        except UnreadableImagesError as error:
            problems[position] = error.problems[0][1]
            return None

    images: Tensor | None = None
    kept: list[int] = []
    # Pillow decodes and resizes outside of the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for position, image in enumerate(pool.map(read, range(len(files)))):
            on_read(position + 1)
            if image is None:
                continue
            if images is None:
                images = torch.empty(len(files), *image.shape, dtype=dtype or image.dtype)
            if image.shape != images.shape[1:]:
                raise UserError(
                    f"{_path(files[position])} has {_edges(image)} but {_path(files[kept[0]])} has {_edges(images[0])}: "
                    f"set {'data.image_size' if image.shape[0] == images.shape[1] else 'data.channels'}."
                )
            if dtype is None and DEPTHS.index(image.dtype) > DEPTHS.index(images.dtype):
                images = at_depth(images, image.dtype)
            images[len(kept)] = at_depth(image, images.dtype)
            kept.append(position)
    if images is None:
        images = torch.empty(0, channels or 3, *(size or (1, 1)), dtype=dtype or torch.uint8)
    return images[: len(kept)], kept, [(_path(files[position]), problems[position]) for position in sorted(problems)]


def read_thumbnails(files: Sequence[Path], edge: int, squeeze: bool = False) -> Tensor:
    """Return the files for people to look at: uint8 RGB of shape (num, 3, edge, edge), each at its own brightness."""
    images = (as_bytes(read_image(file, None, (edge, edge), squeeze)[None]) for file in files)
    return torch.cat([with_channels(image, 3) for image in images])


def read_image(
    file: File, channels: int | None, size: Size | None = None, squeeze: bool = False, bits: int | None = None
) -> Tensor:
    """Return one file as uint8, uint16 or floats of shape (channels, height, width), upright as its EXIF data say.

    Args:
        file: of an image.
        channels: 1 for grey, 3 for RGB, or as many as it has; its own where None.
        size: what it is centre-cropped and resized to; None leaves it as it is.
        squeeze: resize without the crop.
        bits: that images in words of 16 bits use, where their files do not say so; None: all 16.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        deep = read_deep(file, bits) if isinstance(file, Path) else None
        if deep is not None:
            return _fitted(torch.from_numpy(np.ascontiguousarray(deep)), channels, size, squeeze)
        with Image.open(file if isinstance(file, Path) else io.BytesIO(file.content)) as image:
            if size is not None:
                # A JPEG decodes much faster at a fraction of its size; twice the target leaves the quality to resizing.
                image.draft("L" if channels == 1 else "RGB", (2 * max(size), 2 * max(size)))
            stated = getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, (16,))[0]
            return image_tensor(ImageOps.exif_transpose(image), channels, size, squeeze, stated if 8 < stated < 16 else bits)
    except MissingPackageError:
        raise
    except (*DAMAGED, Image.DecompressionBombError) as error:
        reason = "no image that can be read" if isinstance(error, UnidentifiedImageError) else str(error).rstrip(".")
        raise UnreadableImagesError([(_path(file), reason)], 1) from error


def image_tensor(
    image: Image, channels: int | None, size: Size | None = None, squeeze: bool = False, bits: int | None = None
) -> Tensor:
    """Return a Pillow image as uint8, one of 16 bits as uint16, of shape (channels, height, width).

    Args:
        image: of any mode but floats; transparency is dropped.
        channels: 1 for grey, 3 for RGB; its own where None.
        size: what it is centre-cropped and resized to with antialiasing; None leaves it as it is.
        squeeze: resize without the crop.
        bits: that an image of 16 bits uses; None: all.
    """
    from PIL import Image, ImageOps

    if image.mode == "F":
        raise UserError("its pixels are floats without a fixed scale, save them with 8 or 16 bits.")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.size and not 0 <= int(values.min()) <= int(values.max()) <= 65535:
            raise UserError("its pixels have 32 bits, save them with 8 or 16.")
        words = values.astype(np.uint16)
        words = words if bits is None else widened(words, bits)
        return _fitted(torch.from_numpy(words)[None], channels, size, squeeze)
    if "transparency" in image.info:
        image = image.convert("RGBA")
    if channels not in (None, 1, 3):
        raise UserError(f"it has {len(image.getbands())} channels of 8 bits, and data.channels asks for {channels}.")
    channels = channels or (1 if image.mode in ("1", "L", "LA") else 3)
    image = image.convert("L" if channels == 1 else "RGB")
    if size is not None and (image.height, image.width) != size:
        fit = Image.Image.resize if squeeze else ImageOps.fit
        image = fit(image, (size[1], size[0]), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if channels == 1 else pixels.permute(2, 0, 1)


def _fitted(image: Tensor, channels: int | None, size: Size | None, squeeze: bool) -> Tensor:
    """Return an image of any depth with these channels, in this size."""
    images = image[None] if channels is None else with_channels(image[None], channels)
    return (images if size is None else resize(images, size, squeeze))[0]


def _walk(folder: Path) -> Iterable[Path]:
    above = {str(folder): [os.path.realpath(folder)]}
    for place, folders, files in os.walk(folder, followlinks=True):
        real = {name: os.path.realpath(os.path.join(place, name)) for name in folders if not name.startswith(".")}
        # A link to a folder that it lies in would never end.
        folders[:] = [name for name in real if real[name] not in above[place]]
        above |= {os.path.join(place, name): [*above[place], real[name]] for name in folders}
        yield from (Path(place, name) for name in files if not name.startswith("."))


def _path(file: File) -> Path:
    return file if isinstance(file, Path) else file.path


def _edges(image: Tensor) -> str:
    channels, height, width = image.shape
    return f"{width}x{height} pixels" + ("" if channels <= 3 else f" of {channels} channels")
