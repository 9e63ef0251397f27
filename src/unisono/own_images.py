"""A folder of images, looked at before a run: sites, sizes, channels, bits, files that cannot be read, exact duplicates."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median

import torch

from unisono.core.errors import UserError, left_out
from unisono.data.sources.deep import TIFF
from unisono.data.sources.images import list_images, other_files, read_readable
from unisono.data.sources.white import bits_in_use, highest_value
from unisono.sample_set import SampleSet

BITS = {"1": 1, "I;16": 16, "I;16B": 16, "I;16L": 16, "I": 32, "F": 32}
"""Bits of a value by Pillow's mode; 8 in all others."""
CHANNELS = {"1": 1, "L": 1, "I;16": 1, "I;16B": 1, "I;16L": 1, "I": 1, "F": 1, "LA": 1}
"""Channels without transparency by Pillow's mode; 3 in all others."""
MOST_ENDS = 5
FEW = 100
"""Images, below which there is little to learn from."""
TYPE_BITS = {torch.uint8: 8, torch.uint16: 16, torch.float32: 32}


@dataclass(frozen=True)
class Head:
    """Size and depth of an image, as its file states them.

    Args:
        width: in pixels.
        height: in pixels.
        channels: without transparency; as many as it has where there are more than three.
        bits: of a value.
    """

    width: int
    height: int
    channels: int
    bits: int


@dataclass(frozen=True)
class OwnImages:
    """A folder of images as it was found.

    Args:
        root: the folder.
        files: all images, in order of name.
        folders: the folders between the root, or its parts train and test, and each file.
        heads: of each file; None where it cannot be read.
        problems: files that cannot be read, each with the reason.
        copies: groups of files that are equal byte by byte, as positions.
        apart: whether there are folders train and test.
        highest: value of the images in words of 16 bits, by site; sites that have none are not among them.
        others: files that are no images by their names, by the end of the name.
    """

    root: Path
    files: tuple[Path, ...]
    folders: tuple[tuple[str, ...], ...]
    heads: tuple[Head | None, ...]
    problems: tuple[tuple[Path, str], ...]
    copies: tuple[tuple[int, ...], ...]
    apart: bool
    highest: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Levels of folders that every image lies in."""
        return min(len(folders) for folders in self.folders)

    @cached_property
    def sites(self) -> dict[str, list[int]]:
        """Positions of the files by the first folder they lie in, "" where they lie in none."""
        found: dict[str, list[int]] = {}
        for position, folders in enumerate(self.folders):
            found.setdefault(folders[0] if folders else "", []).append(position)
        return found

    @property
    def short_side(self) -> int:
        """The median of the shorter sides."""
        return int(median(min(head.width, head.height) for head in self.readable))

    @property
    def stretch(self) -> float:
        """The median of the longer side over the shorter one."""
        return float(median(max(head.width, head.height) / max(1, min(head.width, head.height)) for head in self.readable))

    @property
    def channels(self) -> int:
        """1 if all images are grey, 3 if some have colours; where most have another number, that one."""
        numbers = Counter(head.channels for head in self.readable)
        common = numbers.most_common(1)[0][0]
        return common if common not in (1, 3) else 3 if 3 in numbers else 1

    @cached_property
    def readable(self) -> tuple[Head, ...]:
        """The heads of all files that have one."""
        return tuple(head for head in self.heads if head is not None)

    @property
    def copies_across(self) -> int:
        """Groups of equal files that lie in more than one site."""
        return sum(len({self.folders[row][:1] for row in group}) > 1 for group in self.copies)

    @property
    def bits(self) -> int | None:
        """Bits that words of 16 use in all images; None where some use all, or there are no such images."""
        return bits_in_use(max(self.highest.values(), default=0))

    @property
    def remarks(self) -> list[str]:
        """Sentences on what the user should know before a run."""
        found = []
        if len(self.readable) < FEW:
            what = "image is" if len(self.readable) == 1 else "images are"
            found.append(f"{len(self.readable)} {what} few: little can be learnt from less than some hundred")
        if self.others:
            number = sum(self.others.values())
            what = (
                "1 file is no image by its name and is"
                if number == 1
                else f"{number:,} files are no images by their names and are"
            )
            ends = ", ".join(sorted(self.others, key=lambda end: (-self.others[end], end))[:MOST_ENDS])
            found.append(f"{what} passed over ({ends})")
        if self.problems:
            found.append(f"{left_out(len(self.problems))}: {first_problem(self.problems)}")
        if self.copies:
            copies = sum(len(group) - 1 for group in self.copies)
            what = (
                "1 file is an exact copy of another, and is kept"
                if copies == 1
                else (f"{copies:,} files are exact copies of others, and are kept")
            )
            first, second, *_ = (self.files[row] for row in self.copies[0])
            across = f"; {self.copies_across:,} of {len(self.copies):,} groups span sites" if self.copies_across else ""
            found.append(f"{what}: {second} of {first}{across}")
        dark = [site for site, highest in self.highest.items() if bits_in_use(highest)]
        if dark and self.bits is None:
            highest = max(self.highest[site] for site in dark)
            found.append(
                f"images of 16 bits of {', '.join(dark[:3])} do not exceed {highest:,} of 65,535 and are nearly black beside "
                "those of other sites: save them with values from 0 to 65,535"
            )
        if self.apart:
            found.append("the images below test/ are held out, and those below train/ are learnt from")
        return found


def first_problem(problems: Sequence[tuple[Path, str]]) -> str:
    """Return the first file that cannot be read, its reason, and how many more there are."""
    file, reason = problems[0]
    return f"{file} ({reason})" + (f" and {len(problems) - 1:,} more" if len(problems) > 1 else "")


def look(folder: Path) -> OwnImages:
    """Return what a folder of images holds.

    Args:
        folder: with one folder per site, or images alone.
    """
    if not folder.exists():
        raise UserError(f"There is no folder {folder}; 'unisono start {folder} --example' makes one with example images.")
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; give the folder that holds the images, one folder per site.")
    _check_access(folder)
    apart = (folder / "train").is_dir() and (folder / "test").is_dir()
    files = list_images([folder])
    if len(files) == 1:
        raise UserError(f"{folder} holds a single image ({files[0]}), and there is nothing to compare it with; add more.")
    folders = [file.relative_to(folder).parts[apart:-1] for file in files]
    levels = {bool(parts) for parts in folders}
    if len(levels) > 1:
        stray = next(file for file, parts in zip(files, folders, strict=True) if not parts)
        raise UserError(f"{stray} lies beside the folders of sites; move it into one of them, or all images into one folder.")
    heads, problems = read_heads(files)
    if not any(heads):
        raise UserError(f"None of the {len(files):,} images in {folder} can be read: {problems[0][0]} ({problems[0][1]}).")
    rows = [row for row, head in enumerate(heads) if head is not None]
    empty = ("",) * len(rows)
    copies = SampleSet(empty, empty, empty, (3, 1, 1), files=tuple(files[row] for row in rows)).equal_rows()
    groups = tuple(tuple(rows[row] for row in group) for group in copies)
    found = OwnImages(folder, tuple(files), tuple(folders), heads, problems, groups, apart)
    deep = {row for row, head in enumerate(heads) if head is not None and head.bits == 16}
    values = {site: highest_value([files[row] for row in rows if row in deep]) for site, rows in found.sites.items()}
    highest = {site: value for site, value in values.items() if value is not None}
    return replace(found, highest=highest, others=Counter(file.suffix or file.name for file in other_files(folder)))


def read_heads(files: Sequence[Path]) -> tuple[tuple[Head | None, ...], tuple[tuple[Path, str], ...]]:
    """Return the head of every file, None where it cannot be read, and the reasons.

    Args:
        files: images.
    """
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        found = list(pool.map(_head, files))
    heads = tuple(head if isinstance(head, Head) else None for head in found)
    return heads, tuple((file, reason) for file, reason in zip(files, found, strict=True) if isinstance(reason, str))


def _head(file: Path) -> Head | str:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            if file.suffix.lower() in TIFF and getattr(image, "n_frames", 1) > 1:
                return _head_of_array(file)  # pages are channels
            return Head(image.width, image.height, CHANNELS.get(image.mode, 3), BITS.get(image.mode, 8))
    except UnidentifiedImageError:
        return _head_of_array(file)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return str(error).rstrip(".")


def _head_of_array(file: Path) -> Head | str:
    """Return the head of a file that Pillow does not read as it is, by reading it whole."""
    images, _, problems = read_readable([file], None, None)
    if problems:
        return problems[0][1]
    _, channels, height, width = images.shape
    return Head(width, height, channels, TYPE_BITS.get(images.dtype, 32))


def _check_access(folder: Path) -> None:
    """Raise a UserError for a folder that may not be read: its images would be missing in silence."""
    inside = [folder]
    if os.access(folder, os.R_OK | os.X_OK):
        inside += [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    for path in inside:
        if not os.access(path, os.R_OK | os.X_OK):
            raise UserError(f"You may not read the folder {path}; change its permissions or move it away.")


def counted(values: Sequence[str], most: int = 3) -> str:
    """Return the most frequent values, such as ``64x64 (1,990), 32x32 (10)``; one alone without its number.

    Args:
        values: words.
        most: how many different ones.
    """
    common = Counter(values).most_common()
    if len(common) == 1:
        return common[0][0]
    shown = ", ".join(f"{value} ({number:,})" for value, number in common[:most])
    return shown + (f" and {len(common) - most:,} more" if len(common) > most else "")
