"""Stand-ins for data sets: the same number of samples, shapes and classes, of noise and in hardly any memory.

Row ``i`` of the samples is a window into one line of random values that begins at value ``i``, so that a hundred thousand large
images take a few hundred kilobytes and no two of them are alike. Labels are real or drawn evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from unisono.core.errors import MissingDataError, UserError
from unisono.data.datasets import DataConfig, Dataset, convert, hold_out_test, load_dataset, with_samples
from unisono.data.sources.statistics import Statistics, channel_statistics

LARGEST = 1 << 30
"""Bytes of converted samples beyond which noise takes the place of the real ones."""
SEED = 0


@dataclass(frozen=True)
class Facts:
    """Size of a data set that is known without its files.

    Args:
        num_train: training samples.
        num_test: test samples; None where a part of the training samples is held out.
        shape: of one sample.
        num_classes: number of classes.
        num_unlabelled: samples without a label, behind the training samples where ``data.unlabelled`` asks for them.
        num_superclasses: superclasses of equally many classes each; 0 where there are none.
    """

    num_train: int
    num_test: int | None
    shape: tuple[int, ...]
    num_classes: int
    num_unlabelled: int = 0
    num_superclasses: int = 0


FACTS = {
    "cifar10": Facts(50_000, 10_000, (3, 32, 32), 10),
    "cifar100": Facts(50_000, 10_000, (3, 32, 32), 100, num_superclasses=20),
    "cifar20": Facts(50_000, 10_000, (3, 32, 32), 20),
    "mnist": Facts(60_000, 10_000, (1, 28, 28), 10),
    "fashion-mnist": Facts(60_000, 10_000, (1, 28, 28), 10),
    "stl10": Facts(5_000, 8_000, (3, 96, 96), 10, num_unlabelled=100_000),
    "tiny-imagenet": Facts(100_000, 10_000, (3, 64, 64), 200),
    "folder": Facts(13_000, None, (3, 224, 224), 10),
}
"""Official sizes; a folder of images is taken for ImageNet-10."""
NUM_OWNERS = 10
"""Clients of a folder that has folders of clients."""


class SyntheticDataset(Dataset):
    """Data set whose samples are noise."""

    @cached_property
    def _statistics(self) -> Statistics:
        # One sample tells: all are windows into the same noise.
        return channel_statistics(self.samples[:1])


def load_or_imitate(config: DataConfig) -> Dataset:
    """Return the data set, or a ``SyntheticDataset`` where it is not on this machine or would fill its memory.

    Args:
        config: the table ``[data]``.
    """
    plain = config.model_copy(update={"image_size": None, "channels": None})
    try:
        dataset = load_dataset(plain)
        shape = dataset.input_shape
    except MissingDataError:
        if config.dataset not in FACTS:
            raise
        dataset = load_dataset(plain, _rows_of(FACTS[config.dataset]))
        shape = FACTS[config.dataset].shape
        return _with_noise(dataset, config, shape)
    if config.image_size is None and config.channels is None:
        return dataset
    if math.prod(_converted(shape, config)) * (len(dataset.samples) + len(dataset.test_samples)) > LARGEST:
        return _with_noise(dataset, config, shape)
    return with_samples(dataset, lambda samples: convert(samples, config))


def _rows_of(facts: Facts) -> Callable[[DataConfig], Dataset]:
    """Return a loader of as many samples, of one pixel each: options choose among rows, whatever is in them."""

    def load(config: DataConfig) -> Dataset:
        generator = torch.Generator().manual_seed(SEED)
        num_unlabelled = facts.num_unlabelled if config.unlabelled else 0
        num_samples, num_test = facts.num_train + num_unlabelled, facts.num_test or 0
        labels = torch.cat((_even(facts.num_train, facts.num_classes, generator), torch.full((num_unlabelled,), -1)))
        levels = config.layout.split("/") if config.dataset == "folder" else ["classes"]
        has_labels = "classes" in levels
        pixels = torch.zeros(num_samples + num_test, facts.shape[0], *(1 for _ in facts.shape[1:]), dtype=torch.uint8)
        dataset = Dataset(
            config.dataset,
            pixels[:num_samples],
            labels if has_labels else None,
            pixels[num_samples:],
            _even(num_test, facts.num_classes, generator) if has_labels else None,
            tuple(f"class {number}" for number in range(facts.num_classes)) if has_labels else (),
            _even(num_samples, NUM_OWNERS, generator) if "clients" in levels else None,
            tuple(f"client {number}" for number in range(NUM_OWNERS)) if "clients" in levels else (),
            tuple(number * facts.num_superclasses // facts.num_classes for number in range(facts.num_classes))
            if facts.num_superclasses
            else (),
            num_unlabelled,
        )
        return hold_out_test(dataset, config.test_fraction) if facts.num_test is None else dataset

    return load


def _even(number: int, num_values: int, generator: torch.Generator) -> Tensor:
    """Return as many of each value, in random order."""
    return (torch.arange(number) % num_values)[torch.randperm(number, generator=generator)]


def _with_noise(dataset: Dataset, config: DataConfig, shape: tuple[int, ...]) -> Dataset:
    """Return the same rows with noise in the shape that the config asks for."""
    shape = _converted(shape, config)
    changed = with_samples(dataset, lambda samples: _noise(len(samples), shape, samples.dtype))
    return SyntheticDataset(**{field.name: getattr(changed, field.name) for field in fields(changed)})


def _converted(shape: tuple[int, ...], config: DataConfig) -> tuple[int, ...]:
    """Return the shape of a sample after conversion; raise a UserError if it is no image and one is asked for."""
    if len(shape) != 3:
        if config.image_size is not None or config.channels is not None:
            raise UserError(
                f"data.image_size and data.channels are for images, but the data set {config.dataset} holds series."
            )
        return shape
    return tuple(convert(torch.zeros(1, *shape, dtype=torch.uint8), config).shape[1:])


def _noise(number: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return samples of noise, each a window into the same line of values that begins one value after the last."""
    values = torch.randint(256, (math.prod(shape) + number,), generator=torch.Generator().manual_seed(SEED))
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return (values.to(dtype)).as_strided((number, *shape), (1, *strides))
