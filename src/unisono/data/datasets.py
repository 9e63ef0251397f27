"""Dataset: samples, labels and natural owners in memory, whatever the source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from unisono.core.config import Section
from unisono.core.errors import UserError
from unisono.core.mapped import some_chunks
from unisono.core.registry import Registry
from unisono.data.sources.convert import resize, with_channels
from unisono.data.sources.select import balanced_subset, hold_out, strata
from unisono.data.sources.statistics import Statistics, channel_statistics


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples of one source, in memory.

    Args:
        name: the name it was loaded by.
        samples: training samples, images of shape (num_samples, channels, height, width), uint8, uint16 or float32 in [0, 1],
            or float32 series of shape (num_samples, channels, length).
        labels: int64 of shape (num_samples,), positions in ``class_names``, -1 where a sample's label is unknown; None without
            labels. They serve evaluation and simulated partitions.
        test_samples: like ``samples``; may have length 0.
        test_labels: like ``labels``.
        class_names: the names behind the labels.
        owners: int64 of shape (num_samples,), positions in ``owner_names``: the natural client of each training sample (a
            folder, a subject); None where there is none.
        owner_names: the names behind the owners.
        finetune_samples: labelled samples of the training part that are kept out of training, for probes that fine-tune; None
            where there are none.
        finetune_labels: like ``labels``.
        num_unlabelled: so many of the training samples, the last ones, are the unlabelled part: every partition deals them
            IID, probes do not see them, and cc, mcc and fedmcc take them in their instance loss only.
        superclasses: number of the superclass (coarse label) of each class, one for every class name; empty without any.
        probe_samples: samples with labels that no client holds, for probes to learn from; None where there are none.
        probe_labels: theirs.
        unreadable: files that are left out, each with the reason.
        held_out: whether the source has no test part, so that ``data.test_fraction`` made it.
        remarks: what the user should know before a run.
    """

    name: str
    samples: Tensor
    labels: Tensor | None
    test_samples: Tensor
    test_labels: Tensor | None
    class_names: tuple[str, ...] = ()
    owners: Tensor | None = None
    owner_names: tuple[str, ...] = ()
    superclasses: tuple[int, ...] = ()
    num_unlabelled: int = 0
    finetune_samples: Tensor | None = None
    finetune_labels: Tensor | None = None
    probe_samples: Tensor | None = None
    probe_labels: Tensor | None = None
    unreadable: tuple[tuple[Path, str], ...] = ()
    held_out: bool = False
    remarks: tuple[str, ...] = ()

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
        if self.superclasses and len(self.superclasses) != len(self.class_names):
            raise UserError(
                f"The data set {self.name} must name a superclass for each of its {len(self.class_names)} classes, "
                f"got {len(self.superclasses)}."
            )
        if not 0 <= self.num_unlabelled < len(self.samples):
            raise UserError(f"The data set {self.name} has {len(self.samples)} samples and {self.num_unlabelled} unlabelled.")
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
    def num_clustered(self) -> int:
        """Number of training samples without the unlabelled part."""
        return len(self.samples) - self.num_unlabelled

    @property
    def num_clustered_rows(self) -> int | None:
        """The same for ``ClientData``: None where there is no unlabelled part."""
        return self.num_clustered if self.num_unlabelled else None

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
        kinds = {(torch.uint8, 4), (torch.uint16, 4), (torch.float32, 4), (torch.float32, 3)}
        if (samples.dtype, samples.ndim) not in kinds or 0 in samples.shape[1:]:
            raise UserError(
                f"{part} of the data set {self.name} must be images (num, channels, height, width) of uint8, uint16 or "
                f"float32, or float32 series (num, channels, length), got {samples.dtype} of shape {tuple(samples.shape)}."
            )
        if samples.dtype == torch.float32 and not all(chunk.isfinite().all() for chunk in some_chunks(samples, 4096)):
            raise UserError(f"{part} of the data set {self.name} hold values that are not finite; fill or drop them first.")
        if samples.dtype == torch.float32 and samples.ndim == 4 and len(samples):
            ends = [torch.aminmax(chunk) for chunk in some_chunks(samples, 4096)]
            low, high = min(float(end.min) for end in ends), max(float(end.max) for end in ends)
            if low < 0 or high > 1:
                raise UserError(f"Images of floats of the data set {self.name} must lie in [0, 1], got {low:g} to {high:g}.")

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
        None, description="folder or file that holds the data (hub: also a repository); unless said, UNISONO_DATA is searched"
    )
    image_size: int | None = Field(None, gt=0, description="centre-crop images to a square and resize it to this edge")
    squeeze: bool = Field(False, description="resize to image_size without the crop, so that nothing is cut away")
    channels: int | None = Field(
        None,
        ge=1,
        description="turn images grey (1) or RGB (3), or say how many they have; folder: RGB for 8 bits, else as they are",
    )
    depth: Literal[8, 16] | None = Field(
        None, description="folder: bits per value that images are kept with; unset: those of the deepest, floats as floats"
    )
    bits: int | None = Field(
        None,
        ge=8,
        le=16,
        description="folder, npz: bits that images in words of 16 use, such as 12 (white is 4095); unset: 16, or as files say",
    )
    limit: int | None = Field(
        None,
        gt=0,
        description="keep this many training samples, balanced over classes and owners, and the same share of unlabelled ones",
    )
    part: Literal["train", "train+test"] = Field(
        "train", description="train on the training part and test on the test part, or train on both and hold nothing out"
    )
    test_limit: int | None = Field(
        None, ge=0, description="keep this many test samples, balanced over classes; 0 leaves the test part out"
    )
    test_fraction: float = Field(
        0.2, ge=0, lt=1, description="part held out for tests where the source has no test part; 0 holds nothing out"
    )
    probe_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="part of the training samples that no client gets and that probes learn from; 0: from clients' samples",
    )
    layout: Literal["clients", "classes", "clients/classes", "flat"] = Field(
        "clients", description="folder: what the levels of subfolders stand for"
    )
    memory_share: float = Field(
        0.25, ge=0, description="folder: images that would fill more of the memory than this share are kept in a file on disk"
    )
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="folder: end with a list of all images that cannot be read, or leave them out"
    )
    held_out_labels: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the training part that is kept out of training; probes fine-tune with it and its labels",
    )
    held_out_order: Literal["file", "balanced"] = Field(
        "file", description="held_out_labels takes the first samples of the training part, or the first of every class"
    )
    unlabelled: bool = Field(
        False,
        description="stl10: train on the 100,000 unlabelled images too, dealt IID; cc, mcc and fedmcc take them in the "
        "instance loss only",
    )
    window: int = Field(100, gt=0, description="watch: length of a window, at 50 Hz")
    stride: int = Field(50, gt=0, description="watch: distance from one window to the next")
    subset: str | None = Field(None, description="hub: configuration of the repository, where it has several")
    split: str = Field("train", description="hub: split to train on")
    test_split: str | None = Field(None, description="hub: split to test on; test or validation unless said")
    image_column: str | None = Field(None, description="hub: column of the images; the only one unless said")
    label_column: str | None = Field(None, description="hub: column of the labels; the only class column unless said")
    client_column: str | None = Field(None, description="hub: column that says whom a sample belongs to")

    @field_validator("path")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        """Return the path of an existing file or folder as it is from everywhere: runs are read back in other folders."""
        found = None if path is None else Path(path).expanduser()
        return path if found is None or not found.exists() else str(found.absolute())


datasets: Registry[Callable[[DataConfig], Dataset]] = Registry("dataset", "unisono.data.sources")


def load_dataset(config: DataConfig, loader: Callable[[DataConfig], Dataset] | None = None) -> Dataset:
    """Return the data set of the config, limited and converted as it asks.

    Args:
        config: the table ``[data]``.
        loader: reads the samples, in place of the one that ``data.dataset`` names.
    """
    if config.bits is not None and config.dataset not in ("folder", "npz"):
        raise UserError(f"data.bits is for the data sets folder and npz, got {config.dataset}: leave it out.")
    dataset = (loader or datasets[config.dataset])(config)
    if not isinstance(dataset, Dataset):
        raise UserError(f"data.dataset {config.dataset!r} must return a Dataset, got {type(dataset).__name__}; see from_items.")
    dataset = _limit(dataset, config)
    if config.held_out_labels > 0:
        dataset = _hold_out_labels(dataset, config)
    if config.part == "train+test":
        dataset = _join_parts(dataset)
    if config.probe_fraction > 0:
        dataset = _hold_out_for_probes(dataset, config.probe_fraction)
    if config.image_size is None and config.channels is None:
        return dataset
    if dataset.samples.ndim != 4:
        raise UserError(f"data.image_size and data.channels are for images, but the data set {dataset.name} holds series.")
    return with_samples(dataset, lambda samples: convert(samples, config))


def with_samples(dataset: Dataset, change: Callable[[Tensor], Tensor]) -> Dataset:
    """Return the data set with each of its parts changed."""
    finetune, probe = dataset.finetune_samples, dataset.probe_samples
    return replace(
        dataset,
        samples=change(dataset.samples),
        test_samples=change(dataset.test_samples),
        finetune_samples=None if finetune is None else change(finetune),
        probe_samples=None if probe is None else change(probe),
    )


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
        held_out=True,
    )


def _hold_out_labels(dataset: Dataset, config: DataConfig) -> Dataset:
    """Return the data set with a share of its training samples kept for fine-tuning."""
    if dataset.labels is None:
        raise UserError(
            f"data.held_out_labels = {config.held_out_labels:g} needs labels, and {dataset.name} has none: set it to 0."
        )
    number = dataset.num_clustered
    count = round(config.held_out_labels * number)
    if count == 0:
        raise UserError(f"data.held_out_labels = {config.held_out_labels:g} of {number} samples is not even one: raise it.")
    kept = torch.arange(count) if config.held_out_order == "file" else _kept(count, dataset.labels[:number], None, number)
    trained = torch.ones(len(dataset.samples), dtype=torch.bool)
    trained[kept] = False
    return replace(
        dataset,
        samples=dataset.samples[trained],
        labels=dataset.labels[trained],
        owners=None if dataset.owners is None else dataset.owners[trained],
        finetune_samples=dataset.samples[kept],
        finetune_labels=dataset.labels[kept],
    )


def _join_parts(dataset: Dataset) -> Dataset:
    """Return the data set with its test samples behind the training samples, and no test part."""
    if len(dataset.test_samples) == 0:
        return dataset
    if dataset.owners is not None:
        raise UserError(
            f'data.part = "train+test" needs test samples without owners, but training samples of {dataset.name} have owners '
            'and test samples have none: set data.part = "train".'
        )
    number = dataset.num_clustered
    samples = torch.cat((dataset.samples[:number], dataset.test_samples, dataset.samples[number:]))
    labels: Tensor | None = None
    if dataset.labels is not None or dataset.test_labels is not None:
        unknown = [torch.full((len(part),), -1) for part in (dataset.samples, dataset.test_samples)]
        known = [dataset.labels, dataset.test_labels]
        train, test = (none if some is None else some for some, none in zip(known, unknown, strict=True))
        labels = torch.cat((train[:number], test, train[number:]))
    return replace(dataset, samples=samples, labels=labels, test_samples=samples[:0], test_labels=None)


def _hold_out_for_probes(dataset: Dataset, fraction: float) -> Dataset:
    """Return the data set with this fraction of its training samples, in proportion from every class, kept for probes."""
    if dataset.labels is None:
        raise UserError(f"data.probe_fraction needs labels, and the data set {dataset.name} has none: set it to 0.")
    if dataset.num_unlabelled:
        raise UserError("data.probe_fraction is for data without an unlabelled part: set data.unlabelled = false.")
    kept = hold_out_test(replace(dataset, test_samples=dataset.samples[:0], test_labels=dataset.labels[:0]), fraction)
    if len(kept.test_samples) == 0:
        raise UserError(f"data.probe_fraction = {fraction:g} holds out none of {len(dataset.samples)} samples: raise it.")
    return replace(
        kept,
        test_samples=dataset.test_samples,
        test_labels=dataset.test_labels,
        probe_samples=kept.test_samples,
        probe_labels=kept.test_labels,
        held_out=dataset.held_out,
    )


def convert(samples: Tensor, config: DataConfig) -> Tensor:
    """Return images with the channels and in the size that the config asks for."""
    if config.channels is not None:
        samples = with_channels(samples, config.channels)
    return samples if config.image_size is None else resize(samples, config.image_size, config.squeeze)


def _limit(dataset: Dataset, config: DataConfig) -> Dataset:
    number = dataset.num_clustered
    if config.limit is not None and config.limit < number:
        labels, owners = (None if values is None else values[:number] for values in (dataset.labels, dataset.owners))
        kept = _kept(config.limit, labels, owners, number)
        unlabelled = round(dataset.num_unlabelled * config.limit / number)
        kept = torch.cat((kept, torch.arange(number, number + unlabelled)))
        dataset = replace(
            dataset,
            samples=dataset.samples[kept],
            labels=None if dataset.labels is None else dataset.labels[kept],
            owners=None if dataset.owners is None else dataset.owners[kept],
            num_unlabelled=unlabelled,
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
