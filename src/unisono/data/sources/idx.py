"""MNIST and Fashion-MNIST from their official idx files, packed with gzip or not.

LeCun, Cortes and Burges, The MNIST database of handwritten digits. Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image
dataset for benchmarking machine learning algorithms, arXiv:1708.07747.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, Dataset, datasets
from unisono.data.sources.locate import candidates, find_folder, reading

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Folder of the Debian package dataset-fashion-mnist."""


@datasets.register("mnist")
def load_mnist(config: DataConfig) -> Dataset:
    """MNIST: 60,000 and 10,000 handwritten digits of 1x28x28."""
    folders = list(candidates(config, ("mnist", "MNIST/raw", "MNIST")))
    folder = find_folder(config, folders, FILES, "https://ossci-datasets.s3.amazonaws.com/mnist")
    return read_idx_folder(folder, "mnist", tuple("0123456789"))


@datasets.register("fashion-mnist")
def load_fashion_mnist(config: DataConfig) -> Dataset:
    """Fashion-MNIST: 60,000 and 10,000 pieces of clothing of 1x28x28."""
    folders = list(candidates(config, ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST")))
    folders += [DEBIAN_FOLDER] if config.path is None else []
    origin = "https://github.com/zalandoresearch/fashion-mnist or the Debian package dataset-fashion-mnist"
    return read_idx_folder(find_folder(config, folders, FILES, origin), "fashion-mnist", FASHION_CLASSES)


def read_idx_folder(folder: Path, name: str, class_names: tuple[str, ...]) -> Dataset:
    """Return the four files of a folder as a data set."""
    samples, labels, test_samples, test_labels = (read_idx(folder / file) for file in FILES)
    return Dataset(
        name, samples.unsqueeze(1), labels.long(), test_samples.unsqueeze(1), test_labels.long(), class_names=class_names
    )


def read_idx(path: Path) -> Tensor:
    """Return the uint8 array of an idx file, in the shape its header gives.

    Args:
        path: the file without ``.gz``; the packed one is read where this does not exist.
    """
    packed = not path.exists()
    path = path.with_name(path.name + ".gz") if packed else path
    with reading(path), gzip.open(path) if packed else path.open("rb") as file:
        magic = file.read(4)
        if len(magic) != 4 or magic[:3] != b"\x00\x00\x08":
            raise UserError(f"{path} is not an idx file of bytes: it begins with {magic.hex(' ')}.")
        shape = tuple(np.frombuffer(file.read(4 * magic[3]), dtype=">u4").tolist())
        array = np.empty(shape, dtype=np.uint8)
        flat = memoryview(array.reshape(-1).data)
        filled = 0
        while filled < len(flat) and (count := file.readinto(flat[filled:])):
            filled += count
        if filled < len(flat) or file.read(1):
            raise UserError(f"{path} does not hold the {array.size} bytes its header promises; copy or download it again.")
    return torch.from_numpy(array)
