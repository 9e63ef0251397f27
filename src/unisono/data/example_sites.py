"""Example images in folders: three sites that show the same kinds of things in their own style."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, load_dataset

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
PER_SITE = 1000
TINT = (90.0, 40.0, 120.0)


def _plain(image: Floats, draw: np.random.Generator) -> Floats:
    return image


def _inverted(image: Floats, draw: np.random.Generator) -> Floats:
    return 255 - 0.8 * image


def _tinted(image: Floats, draw: np.random.Generator) -> Floats:
    coloured = image if image.ndim == 3 else image[:, :, None].repeat(3, axis=2)
    return 0.65 * coloured + TINT + draw.normal(0, 15, coloured.shape)


STYLES: Mapping[str, Callable[[Floats, np.random.Generator], Floats]] = {
    "north": _plain,
    "south": _inverted,
    "west": _tinted,
}
"""Sites by name, and what each does to an image of values from 0 to 255."""


def write_example(folder: Path) -> int:
    """Write images of fashion-mini as three sites and return how many there are; file names end in the kind of clothing.

    Args:
        folder: new or empty.
    """
    data = load_dataset(DataConfig(dataset="fashion-mini", limit=PER_SITE * len(STYLES)))
    assert data.labels is not None
    names = [data.class_names[label] for label in data.labels.tolist()]
    write_sites(folder, data.samples[:, 0].numpy(), names)
    return len(names)


def write_sites(folder: Path, images: Bytes, names: Sequence[str], edge: int | None = None) -> None:
    """Deal images to the sites at random and write them as PNG, each in the style of its site.

    Args:
        folder: new or empty.
        images: shape (num, height, width) or (num, height, width, 3).
        names: what each image shows, for its file name.
        edge: sides that images are resized to; None keeps them.
    """
    from PIL import Image

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} must be a new or an empty folder for the example images.")
    draw = np.random.default_rng(0)
    dealt = draw.permutation(len(images))
    for site, (name, style) in enumerate(STYLES.items()):
        (folder / name).mkdir(parents=True)
        for number, row in enumerate(dealt[site :: len(STYLES)].tolist()):
            picture: Any = Image.fromarray(images[row])
            if edge is not None:
                picture = picture.resize((edge, edge), Image.Resampling.BICUBIC)
            styled = style(np.asarray(picture, dtype=np.float64), draw)
            file = folder / name / f"{number:04}-{names[row].replace('/', '-').replace(' ', '-').lower()}.png"
            Image.fromarray(styled.round().clip(0, 255).astype(np.uint8)).save(file)
