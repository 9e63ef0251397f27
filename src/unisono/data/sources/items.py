"""A data set of the user's own: anything with a length whose items are (sample, label), as torchvision's are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unisono.core.errors import UserError
from unisono.data.datasets import Dataset, hold_out_test
from unisono.data.sources.arrays import channels_first, number, number_both
from unisono.data.sources.images import Size, image_tensor


class Items(Protocol):
    """Interface that torchvision, Hugging Face and plain lists have in common."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def from_items(
    items: Items,
    test_items: Items | None = None,
    *,
    name: str = "items",
    class_names: Sequence[str] | None = None,
    owners: Sequence[int | str] | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    test_fraction: float = 0.2,
) -> Dataset:
    """Return the items, read once, as a data set.

    An item is a sample or a tuple of sample and label. A sample is a Pillow image; an array or tensor of an image, uint8 or
    floats in [0, 1], of shape (H, W, C) or (C, H, W), uint8 also (H, W); or floats of shape (channels, length), a series. A
    label is an integer, a word or None.

    Args:
        items: the training samples. Views are made later, so give them without random transforms or normalisation.
        test_items: the test samples; without them ``test_fraction`` of the items are held out.
        name: the data set's name.
        class_names: the names behind integer labels; ``items.classes``, as torchvision has it, unless given.
        owners: the natural client of each training item.
        image_size: images are centre-cropped and resized to this edge; needed where their sizes differ.
        channels: 1 or 3; as the first image has unless given.
        test_fraction: part of the items that is held out where there are no ``test_items``.
    """
    size = None if image_size is None else (image_size, image_size)
    values: list[Any] = []
    test_values: list[Any] = []
    samples = stack_samples(_samples(items, values), len(items), channels, size)
    if test_items is None or len(test_items) == 0:
        test_samples = samples[:0]
    else:
        like_training = samples.shape[1] if samples.ndim == 4 else None
        test_samples = stack_samples(_samples(test_items, test_values), len(test_items), like_training, size)
    names = class_names if class_names is not None else _classes(items)
    labels, test_labels, known = number_both(values, test_values, names, "Labels")
    numbers, owner_names = (None, ()) if owners is None else number(owners, None, "Owners")
    dataset = Dataset(name, samples, labels, test_samples, test_labels, known, numbers, owner_names)
    return dataset if test_items is not None else hold_out_test(dataset, test_fraction)


def stack_samples(
    samples: Iterable[Any], num_samples: int, channels: int | None, size: Size | None, squeeze: bool = False
) -> Tensor:
    """Return all samples in one tensor, uint8 of shape (num, channels, height, width) or float32 (num, channels, length).

    Args:
        samples: what ``from_items`` takes.
        num_samples: how many there are.
        channels: of images, 1 or 3; as the first image has where None, and then no image may have more.
        size: what images are centre-cropped and resized to; None leaves them as they are.
        squeeze: resize without the crop.
    """
    stacked: Tensor | None = None
    for position, sample in enumerate(samples):
        tensor = _tensor(sample, position, channels, size, squeeze)
        if stacked is None:
            stacked = torch.empty(num_samples, *tensor.shape, dtype=tensor.dtype)
        if tensor.ndim == 3 and len(tensor) < stacked.shape[1]:
            tensor = tensor.expand(stacked.shape[1], -1, -1)
        if tensor.shape != stacked.shape[1:] or tensor.dtype != stacked.dtype:
            raise UserError(
                f"Item {position} has shape {tuple(tensor.shape)} but item 0 has {tuple(stacked.shape[1:])}: "
                f"set image_size or channels for images, cut series to one length."
            )
        stacked[position] = tensor
    if stacked is None:
        raise UserError("There are no items to make a data set of.")
    return stacked


def _classes(items: Items) -> Sequence[str] | None:
    classes = getattr(items, "classes", None)
    return classes if isinstance(classes, list | tuple) and all(isinstance(name, str) for name in classes) else None


def _samples(items: Items, labels: list[Any]) -> Iterator[Any]:
    """Yield the sample of each item in turn; its label is appended to ``labels``."""
    for position in range(len(items)):
        item = items[position]
        sample, label = (*item, None)[:2] if isinstance(item, tuple | list) else (item, None)
        labels.append(label)
        yield sample


def _tensor(sample: Any, position: int, channels: int | None, size: Size | None, squeeze: bool) -> Tensor:
    from PIL import Image

    if isinstance(sample, Image.Image):
        grey = sample.mode in ("1", "L", "LA") or sample.mode.startswith("I")
        return image_tensor(sample, channels or (1 if grey else 3), size, squeeze)
    array = np.asarray(sample)
    if array.dtype.kind == "f" and array.ndim == 2:
        return torch.from_numpy(array.astype(np.float32))
    if array.dtype.kind == "f" and array.ndim == 3 and array.size:
        low, high = float(array.min()), float(array.max())
        if not 0 <= low <= high <= 1:
            raise UserError(
                f"Item {position} has values from {low:g} to {high:g}: give images as uint8 or as floats in [0, 1]."
            )
        array = np.round(array * 255).astype(np.uint8)
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise UserError(
            f"Item {position} must be an image, uint8 or floats in [0, 1], or a float series of shape (channels, length), "
            f"got {type(sample).__name__} of {array.dtype} and shape {array.shape}."
        )
    image = channels_first(array[None], f"Item {position}")[0]
    if size is None and channels in (None, len(image)):
        return torch.from_numpy(np.ascontiguousarray(image))
    pixels = np.ascontiguousarray(image[0] if len(image) == 1 else np.moveaxis(image, 0, 2))
    return image_tensor(Image.fromarray(pixels), channels or len(image), size, squeeze)
