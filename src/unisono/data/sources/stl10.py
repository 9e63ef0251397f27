"""STL-10 from its official binary files.

Coates, Lee and Ng, An analysis of single layer networks in unsupervised feature learning, AISTATS 2011.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, Dataset, datasets
from unisono.data.sources.locate import candidates, find_folder, reading

SHAPE = (3, 96, 96)
IMAGE_BYTES = 3 * 96 * 96
CHUNK = 1000
ORIGIN = "https://cs.stanford.edu/~acoates/stl10"


@datasets.register("stl10")
def load(config: DataConfig) -> Dataset:
    """STL-10: 5,000 training and 8,000 test images of 3x96x96 in 10 classes.

    With ``unlabelled = true`` the 100,000 unlabelled images follow the 5,000, with the label -1. They are left out unless asked
    for: they take 2.8 GB of memory.
    """
    files = ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt"]
    if config.unlabelled:
        files.append("unlabeled_X.bin")
    folder = find_folder(config, list(candidates(config, ("stl10_binary", "stl10"))), files, ORIGIN)
    joined = config.part == "train+test" and config.limit is None and config.test_limit is None
    # Joined here, so that 2.8 GB of unlabelled images need not be copied afterwards.
    clustered = ("train", "test") if joined else ("train",)
    unlabelled = [folder / "unlabeled_X.bin"] if config.unlabelled else []
    samples = _read_images([folder / f"{part}_X.bin" for part in clustered] + unlabelled)
    known = torch.cat([_read_labels(folder / f"{part}_y.bin") for part in clustered])
    labels = torch.full((len(samples),), -1)
    labels[: len(known)] = known
    if not config.unlabelled and len(known) != len(samples):
        raise UserError(f"{folder} has {len(samples)} training images but {len(known)} labels; get the files from {ORIGIN}.")
    with reading(folder / "class_names.txt"):
        class_names = tuple((folder / "class_names.txt").read_text(encoding="utf-8").split())
    test_samples, test_labels = samples[:0], labels[:0]
    if not joined:
        test_samples, test_labels = _read_images([folder / "test_X.bin"]), _read_labels(folder / "test_y.bin")
    return Dataset(
        "stl10",
        samples,
        labels,
        test_samples,
        test_labels,
        class_names=class_names,
        num_unlabelled=len(samples) - len(known),
    )


def _read_images(paths: list[Path]) -> Tensor:
    """Return the images of all files, uint8 of shape (num, 3, 96, 96)."""
    counts = []
    for path in paths:
        count, rest = divmod(path.stat().st_size, IMAGE_BYTES)
        if rest or not count:
            raise UserError(f"{path} is truncated: its size is no multiple of {IMAGE_BYTES} bytes; get it from {ORIGIN}.")
        counts.append(count)
    images = torch.empty(sum(counts), *SHAPE, dtype=torch.uint8)
    start = 0
    for path, count in zip(paths, counts, strict=True):
        with reading(path), path.open("rb") as file:
            for chunk in images[start : start + count].split(CHUNK):
                # Pixels are stored column by column.
                raw = np.fromfile(file, dtype=np.uint8, count=chunk.numel()).reshape(-1, *SHAPE)
                chunk.copy_(torch.from_numpy(raw).transpose(2, 3))
        start += count
    return images


def _read_labels(path: Path) -> Tensor:
    with reading(path):
        numbers = np.fromfile(path, dtype=np.uint8)
    return torch.from_numpy(numbers.astype(np.int64) - 1)
