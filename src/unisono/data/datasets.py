"""Dataset: samples, labels and natural owners in memory, whatever the source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from unisono.core.config import Section
from unisono.core.errors import UserError
from unisono.core.registry import Registry
from unisono.data.sources.convert import resize, with_channels
from unisono.data.sources.select import balanced_subset, hold_out, strata
from unisono.data.sources.statistics import Statistics, channel_statistics


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples of one source, in memory.

    Args:
        name: the name it was loaded by.
        samples: training samples, uint8 images of shape (num_samples, channels, height, width) or float32 series of shape
            (num_samples, channels, length).
        labels: int64 of shape (num_samples,), positions in ``class_names``, -1 where a sample's label is unknown; None without
            labels. They serve evaluation and simulated partitions.
        test_samples: like ``samples``; may have length 0.
        test_labels: like ``labels``.
        class_names: the names behind the labels.
        owners: int64 of shape (num_samples,), positions in ``owner_names``: the natural client of each training sample (a
            folder, a subject); None where there is none.
        owner_names: the names behind the owners.
    """

    name: str
    samples: Tensor
    labels: Tensor | None
    test_samples: Tensor
    test_labels: Tensor | None
    class_names: tuple[str, ...] = ()
    owners: Tensor | None = None
    owner_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.samples) == 0:
            raise UserError(f"The data set {self.name} has no training samples.")
        for part, samples in (("samples", self.samples), ("test_samples", self.test_samples)):
            self._check_samples(part, samples)
        if self.test_samples.shape[1:] != self.samples.shape[1:] or self.test_samples.dtype != self.samples.dtype:
            raise UserError(
                f"Training and test samples of the data set {self.name} must be alike, got {self.samples.dtype} of shape "
                f"{tuple(self.samples.shape[1:])} and {self.test_samples.dtype} of shape {tuple(self.test_samples.shape[1:])}."
            )
        self._check_numbers("labels", self.labels, len(self.samples), -1, len(self.class_names))
        self._check_numbers("test_labels", self.test_labels, len(self.test_samples), -1, len(self.class_names))
        self._check_numbers("owners", self.owners, len(self.samples), 0, len(self.owner_names))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample, (channels, height, width) or (channels, length)."""
        return tuple(self.samples.shape[1:])

    @property
    def num_classes(self) -> int | None:
        """Number of classes, None without labels."""
        return None if self.labels is None else len(self.class_names)

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of the training samples per channel, on the scale the encoder sees: images in [0, 1]."""
        return self._statistics[0]

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of the training samples per channel, on the same scale, never 0."""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> Statistics:
        return channel_statistics(self.samples)

    def _check_samples(self, part: str, samples: Tensor) -> None:
        kinds = {(torch.uint8, 4), (torch.float32, 3)}
        if (samples.dtype, samples.ndim) not in kinds or 0 in samples.shape[1:]:
            raise UserError(
                f"{part} of the data set {self.name} must be uint8 images (num, channels, height, width) or float32 series "
                f"(num, channels, length), got {samples.dtype} of shape {tuple(samples.shape)}."
            )
        if samples.dtype == torch.float32 and not all(chunk.isfinite().all() for chunk in samples.split(4096)):
            raise UserError(f"{part} of the data set {self.name} hold values that are not finite; fill or drop them first.")

    def _check_numbers(self, part: str, numbers: Tensor | None, length: int, low: int, high: int) -> None:
        if numbers is None:
            return
        if numbers.dtype != torch.int64 or tuple(numbers.shape) != (length,):
            raise UserError(
                f"{part} of the data set {self.name} must be int64 of shape ({length},), "
                f"got {numbers.dtype} of shape {tuple(numbers.shape)}."
            )
        if length and not (low <= int(numbers.min()) and int(numbers.max()) < high):
            raise UserError(
                f"{part} of the data set {self.name} must lie between {low} and {high - 1}, as there are {high} names, "
                f"got {int(numbers.min())} to {int(numbers.max())}."
            )


class DataConfig(Section):
    """Choice of the data set and its samples: the table ``[data]``."""

    dataset: str = Field("fashion-mini", description="name of the data set, or module:loader of your own")
    path: str | None = Field(
        None, description="folder or file that holds the data (hub: also a repository); UNISONO_DATA is searched next"
    )
    image_size: int | None = Field(None, gt=0, description="centre-crop images to a square and resize it to this edge")
    channels: Literal[1, 3] | None = Field(None, description="turn images grey (1) or RGB (3); folder: RGB unless said")
    limit: int | None = Field(None, gt=0, description="keep this many training samples, balanced over classes and owners")
    test_limit: int | None = Field(None, gt=0, description="keep this many test samples, balanced over classes")
    test_fraction: float = Field(0.2, ge=0, lt=1, description="part held out for tests where the source has no test part")
    layout: Literal["clients", "classes", "clients/classes", "flat"] = Field(
        "clients", description="folder: what the levels of subfolders stand for"
    )
    unlabelled: bool = Field(False, description="stl10: add the 100,000 unlabelled images to the training samples")
    window: int = Field(100, gt=0, description="watch: length of a window, at 50 Hz")
    stride: int = Field(50, gt=0, description="watch: distance from one window to the next")
    subset: str | None = Field(None, description="hub: configuration of the repository, where it has several")
    split: str = Field("train", description="hub: split to train on")
    test_split: str | None = Field(None, description="hub: split to test on; test or validation unless said")
    image_column: str | None = Field(None, description="hub: column of the images; the only one unless said")
    label_column: str | None = Field(None, description="hub: column of the labels; the only class column unless said")
    client_column: str | None = Field(None, description="hub: column that says whom a sample belongs to")


datasets: Registry[Callable[[DataConfig], Dataset]] = Registry("dataset", "unisono.data.sources")


def load_dataset(config: DataConfig, loader: Callable[[DataConfig], Dataset] | None = None) -> Dataset:
    """Return the data set of the config, limited and converted as it asks.

    Args:
        config: the table ``[data]``.
        loader: reads the samples, in place of the one that ``data.dataset`` names.
    """
    dataset = (loader or datasets[config.dataset])(config)
    if not isinstance(dataset, Dataset):
        raise UserError(f"data.dataset {config.dataset!r} must return a Dataset, got {type(dataset).__name__}; see from_items.")
    dataset = _limit(dataset, config)
    if config.image_size is None and config.channels is None:
        return dataset
    if dataset.samples.ndim != 4:
        raise UserError(f"data.image_size and data.channels are for images, but the data set {dataset.name} holds series.")
    return replace(dataset, samples=convert(dataset.samples, config), test_samples=convert(dataset.test_samples, config))


def hold_out_test(dataset: Dataset, fraction: float) -> Dataset:
    """Return the same samples with this fraction of them moved to the test part, in proportion from every class and owner."""
    mask = torch.from_numpy(hold_out(strata(dataset.labels, dataset.owners, len(dataset.samples)), fraction))
    if not mask.any():
        return dataset
    return replace(
        dataset,
        samples=dataset.samples[~mask],
        labels=None if dataset.labels is None else dataset.labels[~mask],
        test_samples=dataset.samples[mask],
        test_labels=None if dataset.labels is None else dataset.labels[mask],
        owners=None if dataset.owners is None else dataset.owners[~mask],
    )


def convert(samples: Tensor, config: DataConfig) -> Tensor:
    """Return images with the channels and in the size that the config asks for."""
    if config.channels is not None:
        samples = with_channels(samples, config.channels)
    return samples if config.image_size is None else resize(samples, config.image_size)


def _limit(dataset: Dataset, config: DataConfig) -> Dataset:
    if config.limit is not None and config.limit < len(dataset.samples):
        kept = _kept(config.limit, dataset.labels, dataset.owners, len(dataset.samples))
        dataset = replace(
            dataset,
            samples=dataset.samples[kept],
            labels=None if dataset.labels is None else dataset.labels[kept],
            owners=None if dataset.owners is None else dataset.owners[kept],
        )
    if config.test_limit is not None and config.test_limit < len(dataset.test_samples):
        kept = _kept(config.test_limit, dataset.test_labels, None, len(dataset.test_samples))
        dataset = replace(
            dataset,
            test_samples=dataset.test_samples[kept],
            test_labels=None if dataset.test_labels is None else dataset.test_labels[kept],
        )
    return dataset


def _kept(limit: int, labels: Tensor | None, owners: Tensor | None, num_samples: int) -> Tensor:
    return torch.from_numpy(balanced_subset(limit, labels, owners, num_samples))
