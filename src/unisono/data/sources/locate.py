"""Finds official files on disk, and says in one sentence which is missing or damaged."""

from __future__ import annotations

import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from unisono.core.errors import MissingDataError, UserError
from unisono.data.datasets import DataConfig

ENVIRONMENT_VARIABLE = "UNISONO_DATA"


def candidates(config: DataConfig, names: Sequence[str]) -> Iterator[Path]:
    """Yield the places where a data set may be, in order: below ``data.path`` and itself; without it UNISONO_DATA, the cache.

    Below the last two a data set has a folder of its own, for MNIST and Fashion-MNIST name their files alike. They are not
    searched where ``data.path`` is given, for whoever names a place means the data there.

    Args:
        config: its ``path`` excludes other places.
        names: the folders or archives the data set is known by.
    """
    if config.path is not None:
        given = Path(config.path).expanduser()
        yield from (given / name for name in names)
        yield given
        return
    if os.environ.get(ENVIRONMENT_VARIABLE):
        yield from (Path(os.environ[ENVIRONMENT_VARIABLE]).expanduser() / name for name in names)
    yield from (Path.home() / ".cache" / "unisono" / name for name in names)


def find_folder(config: DataConfig, folders: Sequence[Path], files: Sequence[str], origin: str) -> Path:
    """Return the first of the folders that holds all the files; raise a UserError that names a missing one.

    Args:
        config: names the data set.
        folders: where to look, in order.
        files: what must be there, each as it is or with ``.gz`` behind it.
        origin: where to get the files.
    """
    for folder in folders:
        if all(is_there(folder / file) for file in files):
            return folder
    begun = next((folder for folder in folders if any(is_there(folder / file) for file in files)), None)
    if begun is None:
        raise missing(config, files[0], folders, origin)
    lacking = next(file for file in files if not is_there(begun / file))
    raise UserError(f"The data set {config.dataset} lacks the file {lacking} in {begun}; get it from {origin}.")


def is_there(path: Path) -> bool:
    """Return whether the file exists, packed with gzip or not."""
    return path.exists() or path.with_name(path.name + ".gz").exists()


def missing(config: DataConfig, file: str, places: Sequence[Path], origin: str) -> MissingDataError:
    """Return the error for a data set of which nothing was found."""
    return MissingDataError(
        f"The data set {config.dataset} needs the file {file}, which is in none of {', '.join(map(str, places))}; "
        f"get it from {origin} and put it there, or set data.path to its folder."
    )


def given_path(config: DataConfig, what: str) -> Path:
    """Return ``data.path``; raise a UserError that says what it must name if it is not set."""
    if config.path is None:
        raise MissingDataError(f"data.path must name {what} for the data set {config.dataset}; it is not set.")
    path = Path(config.path).expanduser()
    if not path.exists():
        raise MissingDataError(f"data.path must name {what}, but there is no {path}.")
    return path


def refuse_path(config: DataConfig) -> None:
    """Raise a UserError where ``data.path`` is set for a data set that needs none: the user meant other data."""
    if config.path is not None:
        raise UserError(
            f"data.path is {config.path!r}, but the data set {config.dataset} reads no path; "
            f"set data.dataset to folder, npz or another that does, or leave data.path out."
        )


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn the failures of reading a damaged or forbidden file into one sentence about it."""
    try:
        yield
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except (OSError, EOFError, ValueError, MemoryError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
        raise UserError(f"{path} is truncated or damaged ({error}); copy or download it again.") from error
