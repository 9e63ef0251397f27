"""All images of a folder as one tensor, in memory or, where they would fill too much of it, in a file on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
from torch import Tensor

from unisono.core.errors import UnreadableImagesError
from unisono.core.progress import tell
from unisono.data.image_cache import Wanted, cached_images
from unisono.data.sources.images import DEPTHS, Problem, read_image, read_readable
from unisono.data.sources.white import dark_remarks, highest_value, some

if TYPE_CHECKING:
    from unisono.data.datasets import DataConfig

NUM_LOOKED_AT = 16
"""Files that decide about depth and channels before all are read."""


def read_all(files: Sequence[Path], config: DataConfig) -> tuple[Tensor, list[int], list[Problem]]:
    """Return the images that can be read, their positions among the files, and what is wrong with each of the others.

    Args:
        files: of images.
        config: the table ``[data]``.
    """
    size = None if config.image_size is None else (config.image_size, config.image_size)
    some = _some_images(files, config)
    chosen = {8: torch.uint8, 16: torch.uint16, None: None}[config.depth]
    deepest = max((image.dtype for image in some), key=DEPTHS.index, default=torch.uint8)
    uncommon = [len(image) for image in some if image.dtype != torch.uint8 or len(image) not in (1, 3)]
    channels = config.channels or (uncommon[0] if uncommon else 3)
    if some:
        shape = (channels, *size) if size else (channels, some[0].shape[1], some[0].shape[2])
        wanted = Wanted(shape, chosen or deepest, config.squeeze, size is not None, chosen is not None, config.bits)
        if len(files) * wanted.num_bytes > config.memory_share * psutil.virtual_memory().total:
            return cached_images(files, wanted, cache_folder(), config.on_error == "skip")
    return read_readable(
        files, channels, size, config.squeeze, chosen, config.bits, lambda done: tell("reading images", done, len(files))
    )


def remarks(files: Sequence[Path], images: Tensor, config: DataConfig) -> tuple[str, ...]:
    """Return what the user should know of the depth of images.

    Args:
        files: of images.
        images: as they were read.
        config: the table ``[data]``.
    """
    if config.bits is not None or (images.dtype == torch.uint8 and config.depth is None):
        return ()
    looked_at = some(files, NUM_LOOKED_AT)
    return dark_remarks(highest_value(looked_at), f"{len(looked_at)} files looked at")


def cache_folder() -> Path:
    """Return where decoded images are kept."""
    given = os.environ.get("UNISONO_CACHE")
    return (Path(given).expanduser() if given else Path.home() / ".cache" / "unisono") / "images"


def _some_images(files: Sequence[Path], config: DataConfig) -> list[Tensor]:
    """Return a few images of the chosen size, from all over the list, with the depth and the channels that they have."""
    size = None if config.image_size is None else (config.image_size, config.image_size)
    images = []
    for file in some(files, NUM_LOOKED_AT):
        try:
            images.append(read_image(file, None, size, config.squeeze, config.bits))
        except UnreadableImagesError:
            continue
    return images
