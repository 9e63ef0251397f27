"""Two random views of a batch: the table ``[views]``, its presets, and the one entry to image and series augmentation.

Presets, each number of which the table can override. By kind of data, for images only:

- ``digits``: rotation by up to 30 degrees, shear, zoom, translation and stroke thickness; no flip, no colours.
- ``clothing``: crops, flips, brightness, contrast and blur, and some second views solarised. Crops and flips alone let an
  encoder compare brightness: SimCLR then stays below raw pixels.
- ``photos``: crop, flip, colours, grey and blur in both views, as in MoCo v2 (Chen et al. 2020b).

By paper, and for Orchestra by method as in its public code; ``none`` is also RotPred's there:

- ``simclr``: Louizos et al. 2024 (A): random crop to full size, flip, "with probability 0.8, color distortion with brightness,
  contrast, saturation factors of 0.4 and a hue factor of 0.1", grey with probability 0.2. The paper gives no range of crops;
  (0.08, 1) is that of Chen et al. 2020.
- ``byol``: Orchestra (C.1), "the same set of augmentations proposed by Grill et al. (2020)", with crops of (0.5, 1) as in its
  code: the second view is blurred less often and sometimes solarised.
- ``orchestra``: the same pair by its method's name; the first view is the target's, the second the online network's.
- ``orchestra-simclr``: both views as the first one of ``orchestra``; SimSiam's too.
- ``orchestra-byol``: as ``orchestra``, with every first view blurred.
- ``orchestra-specloss``: the first view is cropped (0.08, 1) and flipped, the second cropped (0.2, 1) and flipped, with
  colours, grey and blur.
- ``orchestra-supervised``: crops of (0.5, 1) and flips; of the linear probe too.
- ``cc``: Contrastive Clustering (Li et al. 2021) on CIFAR and Tiny-ImageNet.
- ``cc-stl``: the same on STL-10, with colours twice as strong.
- ``cc-imagenet``: the same on ImageNet-10 and ImageNet-Dogs, with blur.
- ``fedmcc``: the paper names none; those of ``cc``, on which it builds.
- ``easyfl``: FedU, FedEMA, FedSimSiam and FedSimCLR in EasyFL: SimCLR's at full strength without blur.
- ``cfcl``: "random resized crops, random horizontal flips, and Gaussian blurs", with the ranges of Chen et al. 2020.
- ``none``: the samples themselves.

In place of a preset, ``file.py:function`` is a function of the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Protocol, TypeVar

import torch
from pydantic import Field, field_validator
from torch import Tensor

from unisono.core.config import Section
from unisono.core.errors import UserError
from unisono.core.registry import absolute_name, is_code
from unisono.data.geometry import Border, rotate_quarter_turns
from unisono.data.image_views import ImageAugmentation, ImageSettings
from unisono.data.own_views import OwnAugmentation
from unisono.data.series_views import SeriesAugmentation, SeriesSettings

__all__ = ["PRESETS", "Views", "ViewsConfig", "make_views", "rotate_quarter_turns"]

Probability = Annotated[float, Field(ge=0, le=1)]
Strength = Annotated[float, Field(ge=0)]
Range = tuple[float, float]
Settings = TypeVar("Settings", ImageSettings, SeriesSettings)

_CROP_FLIP = ImageSettings(crop_scale=(0.5, 1.0), flip=0.5)
_SIMCLR = ImageSettings(
    crop_scale=(0.08, 1.0), flip=0.5, jitter=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, grey=0.2
)
_STRONG = replace(_SIMCLR, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
_DIGITS = ImageSettings(rotation=30.0, shear=0.4, zoom=(0.7, 1.3), translation=0.1, border="black", stroke=0.15)
_ORCHESTRA = replace(_SIMCLR, crop_scale=(0.5, 1.0), saturation=0.2, blur=0.5)
_ORCHESTRA_ONLINE = replace(_ORCHESTRA, blur=0.1, solarise=0.2)
_CLOTHING = (
    ImageSettings(crop_scale=(0.4, 1.0), flip=0.5, jitter=0.8, brightness=0.4, contrast=0.4, blur=0.5),
    ImageSettings(crop_scale=(0.4, 1.0), flip=0.5, jitter=0.8, brightness=0.4, contrast=0.4, blur=0.1, solarise=0.2),
)
_SPECLOSS = (replace(_SIMCLR, jitter=0.0, grey=0.0), replace(_SIMCLR, crop_scale=(0.2, 1.0), blur=0.5))
_CFCL = ImageSettings(crop_scale=(0.08, 1.0), flip=0.5, blur=0.5)

_SERIES = SeriesSettings(crop_scale=(0.5, 1.0), noise=0.1, scaling=0.2, channel_dropout=0.1, permute=0.5)
_WEAK_SERIES = SeriesSettings(crop_scale=(0.5, 1.0), noise=0.1)
_SERIES_PAIR = (replace(_WEAK_SERIES, scaling=0.2), replace(_WEAK_SERIES, scaling=0.2, permute=1.0))


@dataclass(frozen=True)
class _Preset:
    """The settings of first and second views of images and of series; None where there are none for series."""

    images: tuple[ImageSettings, ImageSettings]
    series: tuple[SeriesSettings, SeriesSettings] | None


def _alike(images: ImageSettings, series: SeriesSettings | None) -> _Preset:
    return _Preset((images, images), None if series is None else (series, series))


PRESETS: Mapping[str, _Preset] = {
    "digits": _alike(_DIGITS, None),
    "clothing": _Preset(_CLOTHING, None),
    "photos": _alike(replace(_SIMCLR, crop_scale=(0.2, 1.0), blur=0.5), None),
    "simclr": _alike(_SIMCLR, _SERIES),
    "byol": _Preset((_ORCHESTRA, _ORCHESTRA_ONLINE), _SERIES_PAIR),
    "orchestra": _Preset((_ORCHESTRA, _ORCHESTRA_ONLINE), _SERIES_PAIR),
    "orchestra-simclr": _alike(_ORCHESTRA, _SERIES),
    "orchestra-byol": _Preset((replace(_ORCHESTRA, blur=1.0), _ORCHESTRA_ONLINE), _SERIES_PAIR),
    "orchestra-specloss": _Preset(_SPECLOSS, _SERIES_PAIR),
    "orchestra-supervised": _alike(_CROP_FLIP, _WEAK_SERIES),
    "cc": _alike(_SIMCLR, _SERIES),
    "cc-stl": _alike(_STRONG, _SERIES),
    "cc-imagenet": _alike(replace(_STRONG, blur=0.5), _SERIES),
    "fedmcc": _alike(_SIMCLR, _SERIES),
    "easyfl": _alike(_STRONG, _SERIES),
    "cfcl": _alike(_CFCL, _WEAK_SERIES),
    "none": _alike(ImageSettings(), SeriesSettings()),
}
"""The presets by name."""


class ViewsConfig(Section):
    """The table ``[views]``: how a sample is changed before it is learnt from; what is not given comes from the preset.

    An option holds for both views unless there is one of the same name with ``second_``, and it is given.
    """

    preset: str = Field(
        "simclr", description="where all other numbers come from unless they are given; or your own code, as file.py:function"
    )
    crop_scale: Range | None = Field(
        None,
        description="range of the crop's share of area or time; [1, 1] means no crop",
    )
    second_crop_scale: Range | None = Field(None, description="the same of the second view")
    crop_ratio: Range | None = Field(None, description="images: range of the crop's width over height")
    flip: Probability | None = Field(None, description="images: probability of a horizontal flip")
    rotation: Annotated[float, Field(ge=0, le=180)] | None = Field(
        None, description="images: largest rotation to either side, in degrees"
    )
    shear: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="images: largest slant to either side, in columns per row"
    )
    zoom: Range | None = Field(None, description="images: range of the enlargement; [1, 1] means none")
    translation: Probability | None = Field(None, description="images: largest shift along each axis, as a share of the side")
    border: Border | None = Field(
        None, description="images: what stands where a rotated, sheared, shrunk or shifted image has no pixels"
    )
    stroke: Annotated[float, Field(ge=0, lt=0.5)] | None = Field(
        None, description="images of bright strokes: they are blurred and cut at a level from 0.5 - value to 0.5 + value"
    )
    jitter: Probability | None = Field(None, description="images: probability of changed colours")
    second_jitter: Probability | None = Field(None, description="images: the same of the second view")
    brightness: Strength | None = Field(None, description="images: factors from 1 - value to 1 + value")
    contrast: Strength | None = Field(None, description="images: factors from 1 - value to 1 + value")
    saturation: Strength | None = Field(None, description="images: factors from 1 - value to 1 + value")
    hue: Annotated[float, Field(ge=0, le=0.5)] | None = Field(None, description="images: largest turn of hue, in full turns")
    grey: Probability | None = Field(None, description="images: probability of grey scale")
    second_grey: Probability | None = Field(None, description="images: the same of the second view")
    blur: Probability | None = Field(
        None, description="images: probability of a blur; of both views unless second_blur is given"
    )
    second_blur: Probability | None = Field(None, description="images: probability of a blur of the second view")
    blur_sigma: Range | None = Field(None, description="images: range of the blur's standard deviation in pixels")
    solarise: Probability | None = Field(None, description="images: probability of inverted bright values, as blur")
    second_solarise: Probability | None = Field(None, description="images: the same of the second view")
    erase: Probability | None = Field(None, description="images: probability that a box is set to 0")
    erase_scale: Range | None = Field(None, description="images: range of the box's share of the area")
    noise: Strength | None = Field(
        None,
        description="series: noise in standard deviations of the channel; images: largest standard deviation of noise, "
        "where 1 is white",
    )
    scaling: Strength | None = Field(None, description="series: standard deviation of each channel's factor")
    channel_dropout: Probability | None = Field(None, description="series: probability that a channel is set to 0")
    permute: Probability | None = Field(None, description="series: probability that segments change places, as blur")
    second_permute: Probability | None = Field(None, description="series: the same of the second view")
    num_segments: Annotated[int, Field(ge=2)] | None = Field(None, description="series: number of segments to permute")

    @field_validator("preset")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in PRESETS and not is_code(value):
            *names, last = map(repr, PRESETS)
            raise ValueError(f"{', '.join(names)} or {last}, or your own code as file.py:function")
        return absolute_name(value)

    @field_validator("crop_scale", "second_crop_scale", "crop_ratio", "zoom", "blur_sigma", "erase_scale")
    @classmethod
    def _ascends(cls, value: Range | None) -> Range | None:
        if value is not None and not 0 < value[0] <= value[1]:
            raise ValueError("two numbers with 0 < low <= high")
        return value

    @field_validator("crop_scale", "second_crop_scale", "erase_scale")
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


def make_views(config: ViewsConfig, input_shape: tuple[int, ...], edge: int | None = None) -> Views:
    """Return the views that the config describes.

    Args:
        config: the table ``[views]``.
        input_shape: shape of one sample, (channels, height, width) for images or (channels, length) for series.
        edge: height and width of views of images; those of a sample where None. Code of the user's own keeps the sample's.
    """
    given = config.model_dump(exclude={"preset"}, exclude_none=True)
    if len(input_shape) not in (2, 3):
        raise UserError(
            "Views are made of images (channels, height, width) or series (channels, length), "
            f"got samples of shape {input_shape}."
        )
    if config.preset not in PRESETS:
        for name in given:
            raise UserError(
                f"views.{name} has no meaning for views.preset {config.preset!r}, which is your own code: remove it."
            )
        augmentation = OwnAugmentation(config.preset)
        augmentation.check(input_shape)
        return Views(augmentation)
    preset = PRESETS[config.preset]
    if len(input_shape) == 3:
        return Views(ImageAugmentation(*_override(preset.images, given, "images"), edge))
    if preset.series is None:
        known = [name for name, other in PRESETS.items() if other.series is not None]
        raise UserError(f"views.preset {config.preset!r} is for images; series have {', '.join(known)}.")
    return Views(SeriesAugmentation(*_override(preset.series, given, "series")))


def _override(preset: tuple[Settings, Settings], given: Mapping[str, Any], kind: str) -> tuple[Settings, Settings]:
    """Return the preset with the config's numbers; those of the first view hold for the second unless it has its own."""
    first, second = preset
    names = {field.name for field in fields(first)}
    for name in given:
        if name.removeprefix("second_") not in names:
            raise UserError(f"views.{name} has no meaning for {kind}: remove it.")
    common = {name: value for name, value in given.items() if name in names}
    own = {name.removeprefix("second_"): value for name, value in given.items() if name not in names}
    return replace(first, **common), replace(second, **{**common, **own})
