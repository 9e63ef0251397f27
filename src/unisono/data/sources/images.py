"""Image files and Pillow images to uint8 tensors of one shape."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from unisono.core.errors import UnreadableImagesError, UserError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"})
Size = tuple[int, int]
"""Height and width."""
Problem = tuple[Path, str]
"""A file that cannot be read, and the reason."""


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


def load_images(paths: Sequence[Path | str], input_shape: Sequence[int], squeeze: bool = False) -> Tensor:
    """Return the images as uint8 of shape (num, channels, height, width), centre-cropped and resized where need be.

    Args:
        paths: image files and folders of them, in the order of ``list_images``.
        input_shape: (channels, height, width) of the result, with 1 or 3 channels.
        squeeze: resize without the crop.
    """
    if len(input_shape) != 3 or input_shape[0] not in (1, 3):
        raise UserError(f"Images need an input shape of 1 or 3 channels, height and width, got {tuple(input_shape)}.")
    channels, height, width = input_shape
    return read_images(list_images(paths), channels, (height, width), squeeze)


def read_images(files: Sequence[Path], channels: int, size: Size | None, squeeze: bool = False) -> Tensor:
    """Return the files as uint8 of shape (num, channels, height, width); raise one error about all that cannot be read.

    Args:
        files: image files.
        channels: 1 for grey, 3 for RGB.
        size: what they are centre-cropped and resized to; None where all must have the size of the first.
        squeeze: resize without the crop.
    """
    images, _, problems = read_readable(files, channels, size, squeeze)
    if problems:
        raise UnreadableImagesError(problems, len(files))
    return images


def read_readable(
    files: Sequence[Path], channels: int, size: Size | None, squeeze: bool = False
) -> tuple[Tensor, list[int], list[Problem]]:
    """Return the images that can be read, their positions among the files, and what is wrong with each of the others.

    Args:
        files: image files.
        channels: 1 for grey, 3 for RGB.
        size: what they are centre-cropped and resized to; None where all must have the size of the first readable one.
        squeeze: resize without the crop.
    """
    problems: dict[int, str] = {}

    def read(position: int) -> Tensor | None:
        try:
            return read_image(files[position], channels, size, squeeze)
        except UnreadableImagesError as error:
            problems[position] = error.problems[0][1]
            return None

    images: Tensor | None = None
    kept: list[int] = []
    # Pillow decodes and resizes outside of the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for position, image in enumerate(pool.map(read, range(len(files)))):
            if image is None:
                continue
            if images is None:
                images = torch.empty(len(files), *image.shape, dtype=torch.uint8)
            if image.shape != images.shape[1:]:
                raise UserError(
                    f"{files[position]} has {_edges(image)} pixels but {files[kept[0]]} has {_edges(images)}: "
                    f"set data.image_size."
                )
            images[len(kept)] = image
            kept.append(position)
    if images is None:
        images = torch.empty(0, channels, *(size or (1, 1)), dtype=torch.uint8)
    return images[: len(kept)], kept, [(files[position], problems[position]) for position in sorted(problems)]


def read_image(file: Path, channels: int, size: Size | None = None, squeeze: bool = False) -> Tensor:
    """Return one file as uint8 of shape (channels, height, width), upright as its EXIF data say."""
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as image:
            if size is not None:
                # A JPEG decodes much faster at a fraction of its size; twice the target leaves the quality to resizing.
                image.draft("L" if channels == 1 else "RGB", (2 * max(size), 2 * max(size)))
            return image_tensor(ImageOps.exif_transpose(image), channels, size, squeeze)
    except (UserError, OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise UnreadableImagesError([(file, str(error).rstrip("."))], 1) from error


def image_tensor(image: Image, channels: int, size: Size | None = None, squeeze: bool = False) -> Tensor:
    """Return a Pillow image as uint8 of shape (channels, height, width).

    Args:
        image: of any mode but floats; 16 bits are scaled to 8, transparency is dropped.
        channels: 1 for grey, 3 for RGB.
        size: what it is centre-cropped and resized to with antialiasing; None leaves it as it is.
        squeeze: resize without the crop.
    """
    from PIL import Image, ImageOps

    if image.mode == "F":
        raise UserError("its pixels are floats without a fixed scale, save them with 8 or 16 bits.")
    if image.mode.startswith("I"):
        # Pillow would clip at 255.
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    elif "transparency" in image.info:
        image = image.convert("RGBA")
    image = image.convert("L" if channels == 1 else "RGB")
    if size is not None and (image.height, image.width) != size:
        fit = Image.Image.resize if squeeze else ImageOps.fit
        image = fit(image, (size[1], size[0]), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if channels == 1 else pixels.permute(2, 0, 1)


def _walk(folder: Path) -> Iterable[Path]:
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in files if not name.startswith("."))


def _edges(images: Tensor) -> str:
    return f"{images.shape[-1]}x{images.shape[-2]}"
