"""Random views of image batches, one set of parameters per sample.

In this order: crop, flip, shear, rotation, zoom and translation; strokes; blur; colours and grey; noise; solarise; erasing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from unisono.data.colour import recolour
from unisono.data.geometry import (
    Border,
    affine_maps,
    apply_matrices,
    blur_matrices,
    boxes_as_masks,
    change_strokes,
    crop_boxes,
    gaussian_weights,
    interpolation_matrices,
    resample,
    sample_positions,
)

Pair = tuple[float, float]

CHUNK_ELEMENTS = 2**17
"""Number of pixels processed at once on a CPU: larger temporary tensors leave the cache and are freed and allocated again."""
NO_BLUR = 1e-3
"""A standard deviation, in pixels, at which the weights of all neighbours are exactly 0."""
ERASE_RATIO = (0.3, 3.3)
"""Range of the width over height of erased boxes, as in Zhong et al. 2020."""


@dataclass(frozen=True)
class ImageSettings:
    """The numbers of one view; the default changes nothing.

    Args:
        crop_scale: range of the crop's share of the area; (1, 1) switches cropping off.
        crop_ratio: range of the crop's width over height.
        flip: probability of a horizontal flip.
        rotation: angles are drawn from [-rotation, rotation], in degrees.
        shear: columns per row, drawn from [-shear, shear].
        zoom: range of the enlargement; (1, 1) switches it off.
        translation: both shifts are drawn from [-translation, translation], in shares of the sides.
        border: what stands where a rotated, sheared, shrunk or translated image has no pixels.
        stroke: the level at which blurred strokes are cut is drawn from [1/2 - stroke, 1/2 + stroke]; 0 switches it off.
        jitter: probability of changed colours.
        brightness: factors are drawn from [1 - brightness, 1 + brightness].
        contrast: likewise.
        saturation: likewise.
        hue: angles are drawn from [-hue, hue], in full turns.
        grey: probability of grey scale.
        blur: probability of a Gaussian blur.
        blur_sigma: range of its standard deviation in pixels.
        noise: the standard deviation of noise is drawn from [0, noise] for every sample.
        solarise: probability that bright values are inverted.
        erase: probability that a box is set to 0.
        erase_scale: range of the box's share of the area.
    """

    crop_scale: Pair = (1.0, 1.0)
    crop_ratio: Pair = (3 / 4, 4 / 3)
    flip: float = 0.0
    rotation: float = 0.0
    shear: float = 0.0
    zoom: Pair = (1.0, 1.0)
    translation: float = 0.0
    border: Border = "edge"
    stroke: float = 0.0
    jitter: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    grey: float = 0.0
    blur: float = 0.0
    blur_sigma: Pair = (0.1, 2.0)
    noise: float = 0.0
    solarise: float = 0.0
    erase: float = 0.0
    erase_scale: Pair = (0.02, 0.33)

    @property
    def crops(self) -> bool:
        """True if any part of an image is ever cut away."""
        return self.crop_scale != (1.0, 1.0)

    @property
    def moves(self) -> bool:
        """True if an image is ever rotated, sheared, zoomed or translated."""
        return any((self.rotation, self.shear, self.translation, self.zoom != (1.0, 1.0)))

    @property
    def resamples(self) -> bool:
        """True if pixels ever move or mix."""
        return self.crops or self.flip > 0 or self.blur > 0


class _Draws(NamedTuple):
    """Parameters drawn for each sample; row i belongs to row i of the batch, and None marks a step that is never done."""

    positions: Tensor | None = None
    maps: Tensor | None = None
    """Of all geometry in place of positions where it is not separable."""
    strokes: Tensor | None = None
    blur_weights: Tensor | None = None
    colours: Tensor | None = None
    """Brightness, contrast, saturation and hue, shape (batch, 4)."""
    noise: Tensor | None = None
    ceiling: Tensor | None = None
    erased: Tensor | None = None

    def rows(self, rows: slice) -> _Draws:
        return _Draws(*(None if drawn is None else drawn[rows] for drawn in self))


@dataclass(frozen=True)
class ImageAugmentation:
    """Images to random views of them.

    Crop, flip and blur are one linear map and the colours another, so blurring comes before the colours (usual code blurs
    after them); the two commute but for the clamping of values to [0, 1], which happens once.

    Args:
        first: what to do, and how often, to make first views.
        second: likewise for second views; the border is that of first views.
        edge: height and width of views, so that a crop is enlarged from the sample as it is; those of the sample where None.
    """

    first: ImageSettings
    second: ImageSettings
    edge: int | None = None

    @torch.no_grad()
    def __call__(self, x: Tensor, num_first: int, generator: torch.Generator) -> Tensor:
        """Return views with values in [0, 1], of the shape of x or of the edge that was asked for.

        Args:
            x: images with values in [0, 1], shape (batch, channels, height, width).
            num_first: this many samples become first views, the rest second views.
            generator: on the device of x.
        """
        size = self._size(x)
        if self.first == self.second == ImageSettings() and size == x.shape[2:]:
            return x.clone()
        draws = self._draw(x, num_first, generator)
        views = x.new_empty(*x.shape[:2], *size)
        chunk = len(x) if x.is_cuda else max(1, CHUNK_ELEMENTS // math.prod(views.shape[1:]))
        for start in range(0, len(x), chunk):
            rows = slice(start, start + chunk)
            _render(x[rows], draws.rows(rows), self.first.border, views[rows])
        return views

    def _size(self, x: Tensor) -> tuple[int, int]:
        """Return height and width of views."""
        return (x.shape[2], x.shape[3]) if self.edge is None else (self.edge, self.edge)

    def _draw(self, x: Tensor, num_first: int, generator: torch.Generator) -> _Draws:
        stored, size, both = (x.shape[2], x.shape[3]), self._size(x), (self.first, self.second)
        numbers = self._numbers(x, num_first)
        uniform = torch.rand(len(x), 14, generator=generator, device=x.device, dtype=x.dtype)
        ranged = torch.addcmul(numbers.low, uniform[:, :9], numbers.span)
        flipped, jittered, grey, blurred, solarised = (uniform[:, 9:] < numbers.chances).unbind(dim=1)
        moves = any(settings.moves for settings in both)
        resamples = moves or size != stored or any(settings.resamples for settings in both)
        crops = any(settings.crops for settings in both)
        box = None if not resamples else _crops(ranged[:, :4], numbers, stored) if crops else _whole(x)
        blurs = any(settings.blur for settings in both)
        recolours = any(settings.jitter or settings.grey for settings in both)
        draws = _Draws(
            positions=sample_positions(*box, flipped, size) if box and not moves else None,
            blur_weights=_blur_weights(torch.where(blurred, ranged[:, 8], NO_BLUR), size) if blurs else None,
            colours=_colours(ranged[:, 4:8], jittered, grey, numbers) if recolours else None,
            ceiling=2 - solarised.to(x.dtype) if any(settings.solarise for settings in both) else None,
        )
        strokes, noise, erases = (any(getattr(settings, name) for settings in both) for name in ("stroke", "noise", "erase"))
        if not (moves or strokes or noise or erases):
            return draws
        uniform = torch.rand(len(x), 12, generator=generator, device=x.device, dtype=x.dtype)
        ranged = torch.addcmul(numbers.more_low, uniform[:, :11], numbers.more_span)
        return draws._replace(
            maps=affine_maps(*box, flipped, ranged[:, :5], stored) if box and moves else None,
            strokes=ranged[:, 5] if strokes else None,
            noise=_noise(x.new_empty(*x.shape[:2], *size), ranged[:, 6], generator) if noise else None,
            erased=_erased(ranged[:, 7:], uniform[:, 11:] < numbers.erase, size) if erases else None,
        )

    def _numbers(self, x: Tensor, num_first: int) -> _Numbers:
        """Return the settings as tensors, a row for all samples or, where the two views differ, one for each."""
        sizes = (x.shape[2], x.shape[3]), self._size(x)
        first = _numbers(self.first, *sizes, x.device, x.dtype)
        if self.first == self.second or num_first == len(x):
            return first
        second = _numbers(self.second, *sizes, x.device, x.dtype)
        if num_first == 0:
            return second
        pairs = zip(first, second, strict=True)
        return _Numbers(*(torch.cat((a.expand(num_first, -1), b.expand(len(x) - num_first, -1))) for a, b in pairs))


def _crops(draws: Tensor, numbers: _Numbers, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return first row and column, and height and width, of crops; where nothing is cropped, those of the image."""
    start, extent = crop_boxes(draws, size)
    return torch.where(numbers.crops, start, 0), torch.where(numbers.crops, extent, numbers.size)


def _whole(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the boxes of whole images."""
    return x.new_zeros(len(x), 2), x.new_tensor(x.shape[2:]).expand(len(x), 2)


def _blur_weights(sigma: Tensor, size: tuple[int, int]) -> Tensor:
    """Return kernels as wide as a tenth of the image, 3 pixels at least.

    Chen et al. 2020, appendix A: "we set the kernel size to be 10% of the image height/width"; rounded down as in their code.
    """
    return gaussian_weights(sigma, min(max(2, min(size) // 20 + 1), *size))


def _colours(factors: Tensor, jittered: Tensor, grey: Tensor, numbers: _Numbers) -> Tensor:
    colours = torch.where(jittered[:, None], factors, numbers.unchanged)
    return torch.where(grey[:, None], colours * numbers.without_saturation, colours)


def _noise(x: Tensor, deviations: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    return noise.mul_(deviations[:, None, None, None])


def _erased(draws: Tensor, chosen: Tensor, size: tuple[int, int]) -> Tensor:
    start, extent = crop_boxes(draws, size)
    return boxes_as_masks(start, torch.where(chosen, extent, 0), size)


def _render(x: Tensor, draws: _Draws, border: Border, views: Tensor) -> None:
    """Write the views of x into ``views``."""
    size = (views.shape[2], views.shape[3])
    blur = None if draws.blur_weights is None else blur_matrices(draws.blur_weights, size)
    if draws.maps is not None:
        x = resample(x, draws.maps, border, size)
    elif draws.positions is not None:
        matrices = interpolation_matrices(draws.positions, max(x.shape[2:]))
        if blur is not None and draws.strokes is None:
            matrices, blur = torch.matmul(blur, matrices), None
        x = apply_matrices(x, matrices, size)
    if draws.strokes is not None:
        x = change_strokes(x, draws.strokes)
    if blur is not None:
        x = apply_matrices(x, blur)
    if draws.colours is not None:
        x = recolour(x, *draws.colours.unbind(dim=1))
    if draws.noise is not None:
        x = x + draws.noise
    torch.clamp(x, 0, 1, out=views)
    if draws.ceiling is not None:
        # min(v, 1 - v) inverts what is brighter than 1/2; min(v, 2 - v) is v.
        torch.minimum(views, draws.ceiling[:, None, None, None] - views, out=views)
    if draws.erased is not None:
        views.masked_fill_(draws.erased, 0)


class _Numbers(NamedTuple):
    """The settings as tensors, with one row or a row for each sample."""

    low: Tensor
    """Of 9 draws: 4 of the crop, 3 colour factors, hue, blur."""
    span: Tensor
    chances: Tensor
    """Of flip, jitter, grey, blur, solarise."""
    crops: Tensor
    size: Tensor
    unchanged: Tensor
    without_saturation: Tensor
    more_low: Tensor
    """Of 11 more draws: angle, shear, zoom, two translations, stroke, noise, 4 of the erased box."""
    more_span: Tensor
    erase: Tensor


@lru_cache(maxsize=32)
def _numbers(
    settings: ImageSettings, stored: tuple[int, int], size: tuple[int, int], device: torch.device, dtype: torch.dtype
) -> _Numbers:
    s = settings
    factors = [(max(0.0, 1 - strength), 1 + strength) for strength in (s.brightness, s.contrast, s.saturation)]
    ranges = [*_box_ranges(s.crop_scale, s.crop_ratio, stored), *factors, _around(2 * math.pi * s.hue), s.blur_sigma]
    moves = [_around(math.radians(s.rotation)), _around(s.shear), s.zoom, _around(s.translation), _around(s.translation)]
    level = (0.5 - s.stroke, 0.5 + s.stroke)
    more = [*moves, level, (0.0, s.noise), *_box_ranges(s.erase_scale, ERASE_RATIO, size)]
    low, high = torch.tensor(ranges, dtype=torch.float64).unbind(dim=1)
    more_low, more_high = torch.tensor(more, dtype=torch.float64).unbind(dim=1)
    rows: list[tuple[float, ...]] = [(s.flip, s.jitter, s.grey, s.blur, s.solarise), stored, (1, 1, 1, 0), (1, 1, 0, 1)]
    chances, whole, unchanged, without_saturation = (torch.tensor(row, dtype=torch.float64) for row in rows)
    crops, erase = torch.tensor([s.crops]), torch.tensor([s.erase], dtype=torch.float64)
    numbers = _Numbers(
        low, high - low, chances, crops, whole, unchanged, without_saturation, more_low, more_high - more_low, erase
    )
    return _Numbers(*(row[None].to(device, dtype if row.is_floating_point() else None) for row in numbers))


def _box_ranges(scale: Pair, ratio: Pair, size: tuple[int, int]) -> list[Pair]:
    """Return the ranges of what ``crop_boxes`` takes."""
    # A draw just below 1 must not be rounded up to a position outside of the image.
    place = (0.0, 1.0 - 1e-6)
    area = size[0] * size[1]
    return [(scale[0] * area, scale[1] * area), (math.log(ratio[0]) / 2, math.log(ratio[1]) / 2), place, place]


def _around(strength: float) -> Pair:
    return (-strength, strength)
