"""Makes the part of Fashion-MNIST that ships with the package: the first samples of every class, in their order.

    python scripts/make_fashion_mini.py FOLDER [OUT]

FOLDER holds the four official idx files, packed or not (the Debian package dataset-fashion-mnist brings them).
The same files give the same bytes, as long as zlib is the same.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np

from unisono.data.datasets import Dataset
from unisono.data.sources.idx import FASHION_CLASSES, read_idx_folder
from unisono.data.sources.select import balanced_subset

DEFAULT_OUT = Path(__file__).parents[1] / "src" / "unisono" / "data" / "files" / "fashion_mini.npz"
NUM_TRAIN, NUM_TEST = 10_000, 2_000


def pack(whole: Dataset) -> bytes:
    """The npz file: x, y, x_test, y_test and class_names of the class-balanced part."""
    train = balanced_subset(NUM_TRAIN, whole.labels, None, len(whole.samples))
    test = balanced_subset(NUM_TEST, whole.test_labels, None, len(whole.test_samples))
    assert whole.labels is not None
    assert whole.test_labels is not None
    packed = io.BytesIO()
    np.savez_compressed(
        packed,
        x=whole.samples.numpy()[train, 0],
        y=whole.labels.numpy()[train].astype(np.uint8),
        x_test=whole.test_samples.numpy()[test, 0],
        y_test=whole.test_labels.numpy()[test].astype(np.uint8),
        class_names=np.array(whole.class_names),
    )
    return packed.getvalue()


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds the official idx files of Fashion-MNIST")
    parser.add_argument("out", type=Path, nargs="?", default=DEFAULT_OUT, help="file to write")
    arguments = parser.parse_args()
    arguments.out.write_bytes(pack(read_idx_folder(arguments.folder, "fashion-mnist", FASHION_CLASSES)))
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
