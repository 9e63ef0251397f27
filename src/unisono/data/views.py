"""Two random views of a batch: the table ``[views]``, its presets, and the one entry to image and series augmentation.

Presets, each number of which the table can override:

- ``simclr``: Louizos et al. 2024 (A): random crop to full size, flip, "with probability 0.8, color distortion with brightness,
  contrast, saturation factors of 0.4 and a hue factor of 0.1", grey with probability 0.2. The paper gives no range of crops;
  (0.08, 1) is that of Chen et al. 2020.
- ``byol``: Orchestra (C.1), "the same set of augmentations proposed by Grill et al. (2020)", with crops of (0.5, 1) as in its
  code: the second view is blurred less often and sometimes solarised.
- ``fedmcc``: the paper names none; those of Contrastive Clustering (Li et al. 2021), on which it builds, for small images.
- ``cfcl``: "random resized crops, random horizontal flips, and Gaussian blurs", with the ranges of Chen et al. 2020.
- ``none``: the samples themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Literal, Protocol, TypeVar

import torch
from pydantic import Field, field_validator
from torch import Tensor

from unisono.core.config import Section
from unisono.core.errors import UserError
from unisono.data.geometry import rotate_quarter_turns
from unisono.data.image_views import ImageAugmentation, ImageSettings
from unisono.data.series_views import SeriesAugmentation, SeriesSettings

__all__ = ["Views", "ViewsConfig", "make_views", "rotate_quarter_turns"]

Preset = Literal["simclr", "byol", "fedmcc", "cfcl", "none"]
Probability = Annotated[float, Field(ge=0, le=1)]
Strength = Annotated[float, Field(ge=0)]
Range = tuple[float, float]
Settings = TypeVar("Settings", ImageSettings, SeriesSettings)

_SIMCLR = ImageSettings(
    crop_scale=(0.08, 1.0), flip=0.5, jitter=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, grey=0.2
)
_IMAGE_PRESETS: Mapping[Preset, ImageSettings] = {
    "simclr": _SIMCLR,
    "byol": replace(_SIMCLR, crop_scale=(0.5, 1.0), saturation=0.2, blur=(0.5, 0.1), solarise=(0.0, 0.2)),
    "fedmcc": _SIMCLR,
    "cfcl": ImageSettings(crop_scale=(0.08, 1.0), flip=0.5, blur=(0.5, 0.5)),
    "none": ImageSettings(),
}
_SIMCLR_SERIES = SeriesSettings(crop_scale=(0.5, 1.0), noise=0.1, scaling=0.2, channel_dropout=0.1, permute=(0.5, 0.5))
_SERIES_PRESETS: Mapping[Preset, SeriesSettings] = {
    "simclr": _SIMCLR_SERIES,
    "byol": SeriesSettings(crop_scale=(0.5, 1.0), noise=0.1, scaling=0.2, permute=(0.0, 1.0)),
    "fedmcc": _SIMCLR_SERIES,
    "cfcl": SeriesSettings(crop_scale=(0.5, 1.0), noise=0.1),
    "none": SeriesSettings(),
}


class ViewsConfig(Section):
    """The table ``[views]``: how a sample is changed before it is learnt from; what is not given comes from the preset."""

    preset: Preset = Field("simclr", description="where all other numbers come from unless they are given")
    crop_scale: Range | None = Field(None, description="range of the crop's share of area or time; [1, 1] means no crop")
    crop_ratio: Range | None = Field(None, description="images: range of the crop's width over height")
    flip: Probability | None = Field(None, description="images: probability of a horizontal flip")
    jitter: Probability | None = Field(None, description="images: probability of changed colours")
    brightness: Strength | None = Field(None, description="images: factors from 1 - value to 1 + value")
    contrast: Strength | None = Field(None, description="images: factors from 1 - value to 1 + value")
    saturation: Strength | None = Field(None, description="images: factors from 1 - value to 1 + value")
    hue: Annotated[float, Field(ge=0, le=0.5)] | None = Field(None, description="images: largest turn of hue, in full turns")
    grey: Probability | None = Field(None, description="images: probability of grey scale")
    blur: Probability | None = Field(
        None, description="images: probability of a blur; of both views unless second_blur is given"
    )
    second_blur: Probability | None = Field(None, description="images: probability of a blur of the second view")
    blur_sigma: Range | None = Field(None, description="images: range of the blur's standard deviation in pixels")
    solarise: Probability | None = Field(None, description="images: probability of inverted bright values, as blur")
    second_solarise: Probability | None = Field(None, description="images: the same of the second view")
    noise: Strength | None = Field(None, description="series: noise in standard deviations of the channel")
    scaling: Strength | None = Field(None, description="series: standard deviation of each channel's factor")
    channel_dropout: Probability | None = Field(None, description="series: probability that a channel is set to 0")
    permute: Probability | None = Field(None, description="series: probability that segments change places, as blur")
    second_permute: Probability | None = Field(None, description="series: the same of the second view")
    num_segments: Annotated[int, Field(ge=2)] | None = Field(None, description="series: number of segments to permute")

    @field_validator("crop_scale", "crop_ratio", "blur_sigma")
    @classmethod
    def _ascends(cls, value: Range | None) -> Range | None:
        if value is not None and not 0 < value[0] <= value[1]:
            raise ValueError("two numbers with 0 < low <= high")
        return value

    @field_validator("crop_scale")
    @classmethod
    def _is_a_share(cls, value: Range | None) -> Range | None:
        if value is not None and value[1] > 1:
            raise ValueError("two numbers <= 1")
        return value


class Augmentation(Protocol):
    """Samples to views: the first ``num_first`` samples of a batch become first views, the rest second views."""

    def __call__(self, x: Tensor, num_first: int, generator: torch.Generator) -> Tensor:
        """Return views, shape of x."""


@dataclass(frozen=True)
class Views:
    """Random views of a batch: images of shape (batch, channels, height, width) in [0, 1], or series (batch, channels, length).

    Every draw comes from the generator, which is on the device of the batch; no gradient flows through a view.

    Args:
        augment: what makes them.
    """

    augment: Augmentation

    def first(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return first views, shape of x."""
        return self.augment(x, len(x), generator)

    def second(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return second views, shape of x."""
        return self.augment(x, 0, generator)

    def pair(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a first and a second view of every sample, each of the shape of x, made in one go."""
        first, second = self.augment(torch.cat((x, x)), len(x), generator).chunk(2)
        return first, second


def make_views(config: ViewsConfig, input_shape: tuple[int, ...]) -> Views:
    """Return the views that the config describes.

    Args:
        config: the table ``[views]``.
        input_shape: shape of one sample, (channels, height, width) for images or (channels, length) for series.
    """
    if len(input_shape) == 3:
        return Views(ImageAugmentation(_override(_IMAGE_PRESETS[config.preset], config, "images")))
    if len(input_shape) == 2:
        return Views(SeriesAugmentation(_override(_SERIES_PRESETS[config.preset], config, "series")))
    raise UserError(
        f"Views are made of images (channels, height, width) or series (channels, length), got samples of shape {input_shape}."
    )


def _override(preset: Settings, config: ViewsConfig, kind: str) -> Settings:
    """Return the preset with the config's numbers; those of the first view hold for the second unless it has its own."""
    given = config.model_dump(exclude={"preset"}, exclude_none=True)
    names = {field.name for field in fields(preset)}
    for name in given:
        if name.removeprefix("second_") not in names:
            raise UserError(f"views.{name} has no meaning for {kind}: remove it.")
    for name in ("blur", "solarise", "permute"):
        if name in names:
            first, second = getattr(preset, name)
            second = given.pop(f"second_{name}", given.get(name, second))
            given[name] = (given.get(name, first), second)
    return replace(preset, **given)
