"""Random views of image batches: crop, flip, colour jitter, grey, blur, solarise; one set of parameters per sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from unisono.data.colour import recolour
from unisono.data.geometry import (
    apply_matrices,
    blur_matrices,
    crop_boxes,
    gaussian_weights,
    interpolation_matrices,
    sample_positions,
)

Pair = tuple[float, float]

CHUNK_ELEMENTS = 2**17
"""Number of pixels processed at once on a CPU: larger temporary tensors leave the cache and are freed and allocated again."""
NO_BLUR = 1e-3
"""A standard deviation, in pixels, at which the weights of all neighbours are exactly 0."""


@dataclass(frozen=True)
class ImageSettings:
    """The numbers behind a preset; the default changes nothing.

    Args:
        crop_scale: range of the crop's share of the area; (1, 1) switches cropping off.
        crop_ratio: range of the crop's width over height.
        flip: probability of a horizontal flip.
        jitter: probability of changed colours.
        brightness: factors are drawn from [1 - brightness, 1 + brightness].
        contrast: likewise.
        saturation: likewise.
        hue: angles are drawn from [-hue, hue], in full turns.
        grey: probability of grey scale.
        blur: probability of a Gaussian blur in the first and in the second view.
        blur_sigma: range of its standard deviation in pixels.
        solarise: probability, in the first and in the second view, that bright values are inverted.
    """

    crop_scale: Pair = (1.0, 1.0)
    crop_ratio: Pair = (3 / 4, 4 / 3)
    flip: float = 0.0
    jitter: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    grey: float = 0.0
    blur: Pair = (0.0, 0.0)
    blur_sigma: Pair = (0.1, 2.0)
    solarise: Pair = (0.0, 0.0)

    @property
    def crops(self) -> bool:
        """True if any part of an image is ever cut away."""
        return self.crop_scale != (1.0, 1.0)

    @property
    def resamples(self) -> bool:
        """True if pixels ever move or mix."""
        return self.crops or self.flip > 0 or any(self.blur)

    @property
    def branches_differ(self) -> bool:
        """True if first and second views are drawn differently."""
        return self.blur[0] != self.blur[1] or self.solarise[0] != self.solarise[1]


class _Draws(NamedTuple):
    """Parameters drawn for each sample; row i belongs to row i of the batch, and None marks a step that is never done."""

    positions: Tensor | None
    blur_weights: Tensor | None
    colours: Tensor | None
    """Brightness, contrast, saturation and hue, shape (batch, 4)."""
    ceiling: Tensor | None

    def rows(self, rows: slice) -> _Draws:
        return _Draws(*(None if drawn is None else drawn[rows] for drawn in self))


@dataclass(frozen=True)
class ImageAugmentation:
    """Images to random views of them.

    Crop, flip and blur are one linear map and the colours another, so blurring comes before the colours (usual code blurs
    after them); the two commute but for the clamping of values to [0, 1], which happens once.

    Args:
        settings: what to do, and how often.
    """

    settings: ImageSettings

    @torch.no_grad()
    def __call__(self, x: Tensor, num_first: int, generator: torch.Generator) -> Tensor:
        """Return views with values in [0, 1], shape of x.

        Args:
            x: images with values in [0, 1], shape (batch, channels, height, width).
            num_first: this many samples become first views, the rest second views.
            generator: on the device of x.
        """
        if self.settings == ImageSettings():
            return x.clone()
        draws = self._draw(x, num_first, generator)
        views = torch.empty_like(x)
        chunk = len(x) if x.is_cuda else max(1, CHUNK_ELEMENTS // math.prod(x.shape[1:]))
        for start in range(0, len(x), chunk):
            rows = slice(start, start + chunk)
            _render(x[rows], draws.rows(rows), views[rows])
        return views

    def _draw(self, x: Tensor, num_first: int, generator: torch.Generator) -> _Draws:
        settings, size = self.settings, (x.shape[2], x.shape[3])
        numbers = _numbers(settings, size, x.device, x.dtype)
        uniform = torch.rand(len(x), 14, generator=generator, device=x.device, dtype=x.dtype)
        ranged = torch.addcmul(numbers.low, uniform[:, :9], numbers.span)
        chances = numbers.first
        if settings.branches_differ:
            chances = torch.cat((numbers.first.expand(num_first, 5), numbers.second.expand(len(x) - num_first, 5)))
        flipped, jittered, grey, blurred, solarised = (uniform[:, 9:] < chances).unbind(dim=1)
        return _Draws(
            _positions(settings, ranged[:, :4], flipped, size) if settings.resamples else None,
            _blur_weights(torch.where(blurred, ranged[:, 8], NO_BLUR), size) if any(settings.blur) else None,
            _colours(ranged[:, 4:8], jittered, grey, numbers) if settings.jitter or settings.grey else None,
            2 - solarised.to(x.dtype) if any(settings.solarise) else None,
        )


def _positions(settings: ImageSettings, draws: Tensor, flipped: Tensor, size: tuple[int, int]) -> Tensor:
    start, extent = crop_boxes(draws, size)
    if not settings.crops:
        start, extent = torch.zeros_like(start), extent.new_tensor(size).expand_as(extent)
    return sample_positions(start, extent, flipped, size)


def _blur_weights(sigma: Tensor, size: tuple[int, int]) -> Tensor:
    """Return kernels as wide as a tenth of the image, 3 pixels at least.

    Chen et al. 2020, appendix A: "we set the kernel size to be 10% of the image height/width".
    """
    return gaussian_weights(sigma, min(max(2, round(min(size) / 20) + 1), *size))


def _colours(factors: Tensor, jittered: Tensor, grey: Tensor, numbers: _Numbers) -> Tensor:
    colours = torch.where(jittered[:, None], factors, numbers.unchanged)
    return torch.where(grey[:, None], colours * numbers.without_saturation, colours)


def _render(x: Tensor, draws: _Draws, views: Tensor) -> None:
    """Write the views of x into ``views``."""
    if draws.positions is not None:
        matrices = interpolation_matrices(draws.positions)
        if draws.blur_weights is not None:
            matrices = torch.matmul(blur_matrices(draws.blur_weights, (x.shape[2], x.shape[3])), matrices)
        x = apply_matrices(x, matrices)
    if draws.colours is not None:
        x = recolour(x, *draws.colours.unbind(dim=1))
    torch.clamp(x, 0, 1, out=views)
    if draws.ceiling is not None:
        # min(v, 1 - v) inverts what is brighter than 1/2; min(v, 2 - v) is v.
        torch.minimum(views, draws.ceiling[:, None, None, None] - views, out=views)


class _Numbers(NamedTuple):
    """The settings as tensors: ranges of 9 draws, probabilities of 5 events in either view, 4 colour factors."""

    low: Tensor
    span: Tensor
    first: Tensor
    second: Tensor
    unchanged: Tensor
    without_saturation: Tensor


@lru_cache(maxsize=32)
def _numbers(settings: ImageSettings, size: tuple[int, int], device: torch.device, dtype: torch.dtype) -> _Numbers:
    area = [share * size[0] * size[1] for share in settings.crop_scale]
    ratio = [math.log(bound) / 2 for bound in settings.crop_ratio]
    # A draw just below 1 must not be rounded up to a position outside of the image.
    position = (0.0, 1.0 - 1e-6)
    factors = [
        (max(0.0, 1 - strength), 1 + strength) for strength in (settings.brightness, settings.contrast, settings.saturation)
    ]
    angle = 2 * math.pi * settings.hue
    ranges = torch.tensor(
        [area, ratio, position, position, *factors, (-angle, angle), settings.blur_sigma], dtype=torch.float64
    )
    chances = [(settings.flip, settings.jitter, settings.grey, settings.blur[view], settings.solarise[view]) for view in (0, 1)]
    tensors = [ranges[:, 0], ranges[:, 1] - ranges[:, 0]]
    tensors += [torch.tensor(values, dtype=torch.float64) for values in (*chances, (1, 1, 1, 0), (1, 1, 0, 1))]
    return _Numbers(*(tensor.to(device, dtype) for tensor in tensors))
