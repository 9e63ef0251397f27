"""Images or series in a numpy ``.npz`` file.

Arrays: ``x`` (or ``images``, ``series``), and where there are any ``y`` (or ``labels``), ``client`` (or ``owner``), ``x_test``,
``y_test`` and ``class_names``. Images are uint8, uint16 or floats in [0, 1] of shape NHW, NHWC or NCHW; series are floats of
shape N x channels x length, and three-dimensional floats are images only if they are called images. An ``.npy`` file is the
array x; its rows are read when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unisono.core.errors import UserError
from unisono.core.mapped import open_mapped, some_chunks
from unisono.data.datasets import DataConfig, Dataset, datasets, hold_out_test, with_samples
from unisono.data.sources.arrays import channels_first, number, number_both
from unisono.data.sources.locate import given_path, reading
from unisono.data.sources.white import dark_remarks
from unisono.data.value_range import as_shares, widened

SAMPLE_KEYS = ("x", "images", "series")
CHUNK = 1024


@datasets.register("npz")
def load(config: DataConfig) -> Dataset:
    """The file that ``data.path`` names; without ``x_test``, ``test_fraction`` of the samples are held out.

    Of an .npy file these are the last rows, for a choice would read the whole file.
    """
    path = given_path(config, "an .npz or .npy file")
    if path.is_dir():
        raise UserError(f"data.path must name an .npz or .npy file, but {path} is a folder.")
    dataset = _with_all_bits(read_arrays(path), path, config.bits)
    if path.suffix == ".npy":
        num_trained = len(dataset.samples) - int(config.test_fraction * len(dataset.samples))
        parts = dataset.samples[:num_trained], dataset.samples[num_trained:]
        return replace(dataset, samples=parts[0], test_samples=parts[1], held_out=True)
    return dataset if len(dataset.test_samples) else hold_out_test(dataset, config.test_fraction)


def _with_all_bits(dataset: Dataset, path: Path, bits: int | None) -> Dataset:
    """Return images in words of 16 bits as ``data.bits`` says, or with a remark where they use few of them."""
    if dataset.samples.dtype != torch.uint16 or bits == 16:
        return dataset
    if bits is None:
        highest = max((int(part.numpy().max()) for part in some_chunks(dataset.samples, CHUNK) if part.numel()), default=0)
        return replace(dataset, remarks=dark_remarks(highest, str(path)))
    if path.suffix == ".npy":
        raise UserError(
            f"data.bits = {bits} is for .npz files and folders, and {path} is read where it lies: multiply its values by "
            f"{2 ** (16 - bits)}, and leave data.bits out."
        )
    return with_samples(dataset, lambda images: torch.from_numpy(widened(images.numpy(), bits)))


def read_arrays(path: Path) -> Dataset:
    """Return the arrays of an .npz file, or the samples of an .npy file, which are read when they are used."""
    if path.suffix == ".npy":
        with reading(path):
            samples = open_mapped(path)
        if samples.dtype not in (torch.uint8, torch.uint16):
            samples = _samples(samples.numpy(), "x", path)
        elif samples.ndim not in (3, 4):
            shapes = "(N, H, W), (N, H, W, C) or (N, C, H, W)"
            raise UserError(f"{path} must hold images of shape {shapes}, got {tuple(samples.shape)}.")
        else:
            samples = torch.from_numpy(channels_first(samples.numpy(), str(path)))
        return Dataset(path.stem, samples, None, samples[:0], None)
    with reading(path), path.open("rb") as file:
        return read_npz(file, path, path.stem)


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
    is_series = array.dtype.kind == "f" and array.ndim == 3 and key != "images"
    if is_series:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    if (array.dtype in (np.uint8, np.uint16) or array.dtype.kind == "f") and array.ndim in (3, 4) and key != "series":
        images = channels_first(array, what)
        if array.dtype.kind == "f":
            images = as_shares(images)
        return torch.from_numpy(np.ascontiguousarray(images))
    raise UserError(
        f"{what} must be images (uint8, uint16 or floats in [0, 1]) of shape (N, H, W), (N, H, W, C) or (N, C, H, W), "
        f"or float series of shape (N, channels, length), got {array.dtype} of shape {array.shape}."
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
