"""Images in words of 16 bits that use fewer, as cameras of 10, 12 and 14 bits write them: as 16 bits they are nearly black."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from unisono.core.errors import UserError
from unisono.data.sources.deep import DICOM
from unisono.data.sources.images import read_image

USUAL = (8, 10, 12, 14)
"""Bits of devices that write words of 16."""
AT_A_TIME = 64


def bits_in_use(highest: int) -> int | None:
    """Return the usual number of bits that holds this value; None where 16 are used, or nothing is to be seen.

    Args:
        highest: value of all images.
    """
    return next((bits for bits in USUAL if 0 < highest < 2**bits), None)


def highest_value(files: Sequence[Path]) -> int | None:
    """Return the highest value of the images in words of 16 bits, 65535 as soon as one uses them; None where there are none.

    Args:
        files: images; files that cannot be read, and DICOM, whose files say what is white, are passed over.
    """
    found: list[int] = []
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(files), AT_A_TIME):
            found += [value for value in pool.map(_highest, files[start : start + AT_A_TIME]) if value is not None]
            if found and max(found) >= 2 ** USUAL[-1]:
                return 65535
    return max(found, default=None)


def dark_remarks(highest: int | None, what: str) -> tuple[str, ...]:
    """Return a sentence where images of 16 bits use few of them; none where they do not.

    Args:
        highest: value that was found.
        what: was looked at, in words.
    """
    bits = None if highest is None else bits_in_use(highest)
    if bits is None:
        return ()
    fact = f"images of 16 bits do not exceed {highest:,} of 65,535 ({what}) and are nearly black"
    return (f"{fact}: if the device gives {bits} bits, set data.bits = {bits}",)


def _highest(file: Path) -> int | None:
    if file.suffix.lower() in DICOM:
        return None
    try:
        image = read_image(file, None)
    except UserError:
        return None
    return int(image.numpy().max()) if image.dtype == torch.uint16 and image.numel() else None


def some(files: Sequence[Path], most: int) -> list[Path]:
    """Return a few files from all over the list.

    Args:
        files: in any order.
        most: how many.
    """
    places = {len(files) * number // most for number in range(most)} if files else set()
    return [files[place] for place in sorted(places)]
