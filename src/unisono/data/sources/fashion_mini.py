"""A class-balanced part of Fashion-MNIST that ships with the package: the default, no download.

Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms, arXiv:1708.07747.
MIT licence, beside the file. ``scripts/make_fashion_mini.py`` makes it.
"""

from __future__ import annotations

from importlib.resources import as_file, files

from unisono.data.datasets import DataConfig, Dataset, datasets
from unisono.data.sources.locate import refuse_path
from unisono.data.sources.npz import read_npz


@datasets.register("fashion-mini")
def load(config: DataConfig) -> Dataset:
    """Fashion-mini: 10,000 training and 2,000 test images of 1x28x28 in 10 classes."""
    refuse_path(config)
    with as_file(files("unisono.data") / "files" / "fashion_mini.npz") as path, path.open("rb") as file:
        return read_npz(file, path, "fashion-mini")
