"""Images or series in a numpy ``.npz`` file.

Arrays: ``x`` (or ``images``, ``series``), and where there are any ``y`` (or ``labels``), ``client`` (or ``owner``), ``x_test``,
``y_test`` and ``class_names``. Images are uint8 of shape NHW, NHWC or NCHW; series are floats of shape N x channels x length.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, Dataset, datasets, hold_out_test
from unisono.data.sources.arrays import channels_first, number, number_both
from unisono.data.sources.locate import given_path, reading

SAMPLE_KEYS = ("x", "images", "series")


@datasets.register("npz")
def load(config: DataConfig) -> Dataset:
    """The file that ``data.path`` names; without ``x_test``, ``test_fraction`` of the samples are held out."""
    path = given_path(config, "an .npz file")
    if path.is_dir():
        raise UserError(f"data.path must name an .npz file, but {path} is a folder.")
    with reading(path), path.open("rb") as file:
        dataset = read_npz(file, path, path.stem)
    return dataset if len(dataset.test_samples) else hold_out_test(dataset, config.test_fraction)


def read_npz(file: BinaryIO, path: Path, name: str) -> Dataset:
    """Return the arrays of an npz file as a data set.

    Args:
        file: its bytes.
        path: where they are from, for messages.
        name: the data set's name.
    """
    # A pickled array could run anything, so none is read.
    with reading(path):
        archive = np.load(file, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise UserError(f"{path} holds a single array; write it with numpy.savez(file, x=...).")
    with archive:
        keys = [key for key in SAMPLE_KEYS if key in archive]
        if len(keys) != 1:
            raise UserError(f"{path} must hold one array named x, images or series, got {', '.join(archive) or 'none'}.")
        samples = _samples(_array(archive, path, keys[0]), keys[0], path)
        test = _array(archive, path, "x_test")
        test_samples = samples[:0] if test is None else _samples(test, "x_test", path)
        labels, test_labels, names = number_both(
            _values(archive, path, len(samples), "y", "labels"),
            _values(archive, path, len(test_samples), "y_test"),
            None if "class_names" not in archive else [str(word) for word in _values(archive, path, None, "class_names")],
            f"Labels of {path}",
        )
        clients = _values(archive, path, len(samples), "client", "owner")
    owners, owner_names = number(clients, None, f"Clients of {path}") if clients else (None, ())
    return Dataset(name, samples, labels, test_samples, test_labels, names, owners, owner_names)


def _samples(array: NDArray[Any] | None, key: str, path: Path) -> Tensor:
    what = f"{key} of {path}"
    if array is None:
        raise UserError(f"{path} has no array {key}.")
    if array.dtype == np.uint8 and array.ndim in (3, 4) and key != "series":
        return torch.from_numpy(np.ascontiguousarray(channels_first(array, what)))
    if array.dtype.kind == "f" and array.ndim == 3 and key != "images":
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    raise UserError(
        f"{what} must be uint8 images of shape (N, H, W), (N, H, W, C) or (N, C, H, W), or float series of shape "
        f"(N, channels, length), got {array.dtype} of shape {array.shape}."
    )


def _values(archive: Mapping[str, Any], path: Path, length: int | None, *keys: str) -> list[Any]:
    """Return one array of numbers or words as a list, empty where the file has none of the keys."""
    array = next((_array(archive, path, key) for key in keys if key in archive), None)
    if array is None:
        return []
    if array.ndim != 1 or (length is not None and len(array) != length):
        raise UserError(f"{keys[0]} of {path} must have shape ({length or 'num'},), got {array.shape}.")
    return list(array.tolist())


def _array(archive: Mapping[str, Any], path: Path, key: str) -> NDArray[Any] | None:
    if key not in archive:
        return None
    with reading(f"{path}, array {key},"):
        try:
            return archive[key]  # type: ignore[no-any-return]
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
            raise UserError(f"{key} of {path} holds Python objects; save it as numbers or words.") from error
