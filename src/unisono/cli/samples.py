"""Loading of the samples that a command is given as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from unisono.loaded import LoadedRun


def read_samples(run: LoadedRun, file: Path) -> tuple[list[str], Tensor]:
    """Return names and samples of what a file or folder holds; row 7 of a.npz is called a.npz#7.

    Args:
        run: whose samples have the right shape.
        file: an image, a folder of images, or an .npz file with an array 'x'.
    """
    from unisono.data.sources.images import list_images, load_images
    from unisono.data.sources.npz import read_npz

    if file.suffix == ".npz" and file.is_file():
        with file.open("rb") as content:
            samples = read_npz(content, file, file.stem).samples
        return [f"{file}#{row}" for row in range(len(samples))], samples
    images = list_images([file])
    return [str(image) for image in images], load_images(images, run.method.info.input_shape, run.config.data.squeeze)
