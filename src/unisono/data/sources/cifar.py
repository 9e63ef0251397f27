"""CIFAR-10, CIFAR-100 and CIFAR-20 from their official Python files, unpacked or in the official archive.

Krizhevsky, Learning multiple layers of features from tiny images, 2009.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, Dataset, datasets
from unisono.data.sources.locate import candidates, find_folder, missing, reading

SHAPE = (3, 32, 32)
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}
"""Names that a pickled array needs, old numpy or new; lists, dicts, numbers and bytes need none."""


@dataclass(frozen=True)
class _Files:
    """The names of one of the two sets, in its folder and inside its files."""

    folder: str
    archive: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    label_key: bytes
    names_key: bytes
    superclass_key: bytes | None = None


CIFAR10 = _Files(
    "cifar-10-batches-py", "cifar-10-python.tar.gz", tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",),
    "batches.meta", b"labels", b"label_names",
)  # fmt: skip
CIFAR100 = _Files(
    "cifar-100-python", "cifar-100-python.tar.gz", ("train",), ("test",), "meta", b"fine_labels", b"fine_label_names",
    b"coarse_labels",
)  # fmt: skip
CIFAR20 = replace(CIFAR100, label_key=b"coarse_labels", names_key=b"coarse_label_names", superclass_key=None)
Batch = Mapping[bytes, Any]


@datasets.register("cifar10")
def load_cifar10(config: DataConfig) -> Dataset:
    """CIFAR-10: 50,000 and 10,000 images of 3x32x32 in 10 classes."""
    return _load(config, CIFAR10)


@datasets.register("cifar100")
def load_cifar100(config: DataConfig) -> Dataset:
    """CIFAR-100: 50,000 and 10,000 images of 3x32x32 in 100 (fine) classes, each of them in one of 20 superclasses."""
    return _load(config, CIFAR100)


@datasets.register("cifar20")
def load_cifar20(config: DataConfig) -> Dataset:
    """CIFAR-20: the images of CIFAR-100 with its 20 superclasses (coarse labels) as classes."""
    return _load(config, CIFAR20)


def _load(config: DataConfig, files: _Files) -> Dataset:
    origin = f"https://www.cs.toronto.edu/~kriz/{files.archive}"
    places = list(candidates(config, (files.folder, files.archive)))
    needed = (*files.train, *files.test, files.meta)
    # An archive of another name is taken where data.path names it.
    archive = next((place for place in places if place.is_file()), None)
    folder = next((place for place in places if (place / files.train[0]).is_file()), None)
    if folder is None and archive is None:
        raise missing(config, f"{files.folder}/{files.train[0]} or {files.archive}", places, origin)
    if archive is not None and (folder is None or places.index(archive) < places.index(folder)):
        return _read(config.dataset, files, archive, _members(archive, needed, origin))
    folder = find_folder(config, [place for place in places if not place.is_file()], needed, origin)
    return _read(config.dataset, files, folder, lambda name: _unpickle((folder / name).read_bytes, folder / name))


def _read(name: str, files: _Files, place: Path, batch: Callable[[str], Batch]) -> Dataset:
    words = _entry(batch(files.meta), files.names_key, place / files.meta)
    if not isinstance(words, list) or not all(isinstance(word, bytes) for word in words):
        raise UserError(f"{place / files.meta} is damaged: the names of its classes are no list of words; download it again.")
    superclasses: dict[int, int] = {}
    samples, labels = _join(files.train, files, place, batch, superclasses, len(words))
    test_samples, test_labels = _join(files.test, files, place, batch, superclasses, len(words))
    class_names = tuple(word.decode() for word in words)
    of_class = tuple(superclasses.get(label, 0) for label in range(len(class_names))) if superclasses else ()
    return Dataset(name, samples, labels, test_samples, test_labels, class_names=class_names, superclasses=of_class)


def _join(
    names: Sequence[str],
    files: _Files,
    place: Path,
    batch: Callable[[str], Batch],
    superclasses: dict[int, int],
    num_classes: int,
) -> tuple[Tensor, Tensor]:
    """Return samples and labels of some batches, each batch let go once it is copied; note superclasses by label."""
    samples = torch.empty(0)
    labels: list[int] = []
    for position, name in enumerate(names):
        content = batch(name)
        rows = _entry(content, b"data", place / name)
        numbers = _numbers(content, files.label_key, place / name, num_classes)
        if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape != (len(numbers), 3072):
            raise UserError(f"{place / name} is damaged: it must hold {len(numbers)} images of 3072 bytes; download it again.")
        if position == 0:
            samples = torch.empty(len(rows) * len(names), *SHAPE, dtype=torch.uint8)
        if len(samples) != len(rows) * len(names):
            raise UserError(f"{place / name} is damaged: it has {len(rows)} images, unlike the others; download it again.")
        samples[position * len(rows) : (position + 1) * len(rows)] = torch.from_numpy(rows.reshape(-1, *SHAPE))
        labels.extend(numbers)
        if files.superclass_key is not None:
            coarse = _numbers(content, files.superclass_key, place / name, num_classes)
            if len(coarse) != len(numbers):
                raise UserError(f"{place / name} is damaged: it has {len(coarse)} superclasses for {len(numbers)} images.")
            superclasses.update(zip(numbers, coarse, strict=True))
    return samples, torch.tensor(labels)


def _numbers(content: Batch, key: bytes, path: Path, num_classes: int) -> list[int]:
    """Return labels of a batch; raise a UserError if they are anything but numbers of classes."""
    found = _entry(content, key, path)
    if not isinstance(found, list) or not all(type(number) is int and 0 <= number < num_classes for number in found):
        raise UserError(
            f"{path} is damaged: its {key.decode()!r} must be whole numbers from 0 to {num_classes - 1}; download it again."
        )
    return found


def _entry(content: Batch, key: bytes, path: Path) -> Any:
    if not isinstance(content, Mapping) or key not in content:
        raise UserError(f"{path} is not an official CIFAR file: it has no entry {key.decode()!r}.")
    return content[key]


def _members(archive: Path, names: Sequence[str], origin: str) -> Callable[[str], Batch]:
    """Return a reader of the archive's batches, unpacked in memory in one pass, as gzip cannot jump."""
    packed: dict[str, bytes] = {}
    with reading(archive), tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member) if Path(member.name).name in names else None
            if file is not None:
                packed[Path(member.name).name] = file.read()
    for name in names:
        if name not in packed:
            raise UserError(f"{archive} lacks the file {name}; get it from {origin}.")
    return lambda name: _unpickle(lambda: packed.pop(name), archive / name)


def _unpickle(read: Callable[[], bytes], path: Path) -> Batch:
    with reading(path):
        content = read()
    try:
        return _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()  # type: ignore[no-any-return]
    except UserError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{path} is truncated or damaged ({type(error).__name__}: {error}); download it again.") from error


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler of arrays and plain containers that refuses whatever else a pickle could call."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise UserError(
                f"A CIFAR file calls {module}.{name}, which no official file does; get it from its official source."
            )
        return super().find_class(module, name)
