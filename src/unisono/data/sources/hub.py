"""Images from the Hugging Face hub, or from a directory or parquet file that ``datasets`` wrote (extra ``hub``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, Dataset, datasets
from unisono.data.sources.arrays import number, some_known
from unisono.data.sources.items import stack_samples
from unisono.data.sources.select import choose_rows

TEST_SPLITS = ("test", "validation", "valid", "val")


@datasets.register("hub")
def load(config: DataConfig) -> Dataset:
    """The repository, directory or file that ``data.path`` names.

    Without a test split, ``test_fraction`` of the rows are held out, in proportion from every class and client.
    """
    splits = _splits(config)
    train = _split(splits, config.split, "data.split")
    test_split = config.test_split or next((name for name in TEST_SPLITS if name in splits and name != config.split), None)
    test = None if test_split is None else _split(splits, test_split, "data.test_split")
    image_column = _column(train, config.image_column, "Image", "data.image_column")
    label_column = _column(train, config.label_column, "ClassLabel", "data.label_column", optional=True)

    client_column = _column(train, config.client_column, "", "data.client_column", optional=True)

    num_test = 0 if test is None else len(test)
    labels, class_names = _labels(train, test, label_column)
    owners, owner_names = (
        (None, ()) if client_column is None else number(list(train[client_column]), None, "data.client_column")
    )
    rows, test_rows = choose_rows(
        None if labels is None else labels.numpy(),
        None if owners is None else owners.numpy(),
        len(train),
        len(train) + num_test,
        config.test_fraction,
        config.limit,
        config.test_limit,
    )
    size = None if config.image_size is None else (config.image_size, config.image_size)
    samples = stack_samples(_images(train, image_column, rows), len(rows), config.channels, size, config.squeeze)
    test_samples = samples[:0]
    if len(test_rows):
        test_images = (
            _images(train, image_column, test_rows) if test is None else _images(test, image_column, test_rows - len(train))
        )
        test_samples = stack_samples(test_images, len(test_rows), samples.shape[1], size, config.squeeze)
    return Dataset(
        "hub",
        samples,
        None if labels is None else some_known(labels[rows]),
        test_samples,
        None if labels is None else some_known(labels[test_rows]),
        class_names,
        None if owners is None else owners[rows],
        owner_names,
    )


def _labels(train: Any, test: Any | None, column: str | None) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return labels of all rows, those of the test split last, and the names behind them."""
    if column is None:
        return None, ()
    values = list(train[column])
    if test is not None:
        values += list(test[column]) if column in test.column_names else [None] * len(test)
    return number(values, getattr(train.features[column], "names", None), f"data.label_column {column!r}")


def _splits(config: DataConfig) -> dict[str, Any]:
    """Return the splits by name, as ``datasets`` gives them."""
    try:
        import datasets as hub
    except ImportError as error:
        raise UserError("The data set hub needs the package datasets; install it with: pip install 'unisono[hub]'.") from error

    if config.path is None:
        raise UserError("data.path must name a repository on the hub, a directory or a parquet file for the data set hub.")
    local = Path(config.path).expanduser()
    try:
        if (local / "dataset_dict.json").exists() or (local / "state.json").exists():
            found = hub.load_from_disk(str(local))
        elif local.is_file():
            found = hub.load_dataset("parquet", data_files={config.split: str(local)})
        else:
            found = hub.load_dataset(str(local) if local.exists() else config.path, config.subset)
    except Exception as error:  # it raises its own, pyarrow's and the network's errors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"data.path {config.path!r} cannot be loaded by the package datasets: {reason.rstrip('.')}.") from error
    return dict(found) if isinstance(found, dict) else {config.split: found}


def _split(splits: dict[str, Any], name: str, field: str) -> Any:
    if name not in splits:
        raise UserError(f"{field} must be one of {', '.join(splits)}, got {name!r}.")
    return splits[name]


def _column(split: Any, given: str | None, kind: str, field: str, optional: bool = False) -> str | None:
    """Return the given column, or the only one of this kind of feature."""
    if given is not None:
        if given not in split.column_names:
            raise UserError(f"{field} must be one of {', '.join(split.column_names)}, got {given!r}.")
        return given
    found = [name for name, feature in split.features.items() if type(feature).__name__ == kind]
    if len(found) > 1 or (not found and not optional):
        raise UserError(
            f"{field} must be set: of the columns {', '.join(split.column_names)}, {len(found)} are of kind {kind}."
        )
    return found[0] if found else None


def _images(split: Any, column: str | None, rows: np.ndarray) -> Iterator[Any]:
    for row in split.select_columns([column]).select(rows):
        yield row[column]
