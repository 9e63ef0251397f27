"""Crops, flips, affine maps, blurs, strokes, erased boxes and quarter turns of image batches, with parameters per sample.

Bilinear resizing of a crop, a flip and a Gaussian blur are all separable and linear, so one matrix per axis does the three at
once: ``out = rows @ x @ columns.T``. At the sizes of this field that is faster than ``grid_sample``. Rotation and shear are not
separable: they, zoom and translation are composed with crop and flip into one affine map per sample, read by ``grid_sample``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from unisono.core.errors import UserError

Border = Literal["edge", "black"]
STROKE_SIDE = 28
"""Strokes are blurred by a standard deviation of one pixel in images of this side, and in proportion in others."""


def crop_boxes(draws: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return first row and column, and height and width, of random crops: two tensors of whole numbers, shape (batch, 2).

    As the usual random resized crop, but a box that is too wide for the image is cut to it instead of being drawn again, so
    that a batch needs one draw. With ratios of (3/4, 4/3) one in seven boxes of a square image is cut at shares of (0.08, 1),
    one in four at (0.5, 1); torchvision's crops are a little smaller on average.

    Args:
        draws: area in pixels, half the logarithm of width over height, and two places in [0, 1), shape (batch, 4).
        size: height and width of the images.
    """
    constants = _constants(size, draws.device, draws.dtype)
    stretch = (draws[:, 1:2] * constants.narrow_wide).exp_()
    extent = torch.clamp(stretch.mul_(draws[:, :1].sqrt()).round_(), constants.one, constants.size)
    start = (constants.size_plus_one - extent).mul_(draws[:, 2:4]).floor_()
    return start, extent


def sample_positions(start: Tensor, extent: Tensor, flipped: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the input position that each output row and column reads, shape (batch, 2, longer side); a shorter side is padded.

    Args:
        start: first row and column of the crop, shape (batch, 2).
        extent: height and width of the crop, shape (batch, 2).
        flipped: true where left and right are exchanged, shape (batch,).
        size: height and width of the output.
    """
    constants = _constants(size, start.device, start.dtype)
    reach = extent - 1
    step = extent * torch.where(flipped[:, None], constants.mirrored, constants.one)
    centre = torch.add(start, reach, alpha=0.5)
    positions = torch.addcmul(centre[:, :, None], step[:, :, None], constants.pixel_centres)
    return torch.clamp(positions, start[:, :, None], (start + reach)[:, :, None])


def affine_maps(start: Tensor, extent: Tensor, flipped: Tensor, moves: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the maps from output to input that crop, flip, shear, rotate, zoom and translate in this order.

    They are of shape (batch, 2, 3), in coordinates (x, y, 1) that go from -1 to 1 over the image.

    Args:
        start: first row and column of the crop, shape (batch, 2).
        extent: height and width of the crop, shape (batch, 2).
        flipped: true where left and right are exchanged, shape (batch,).
        moves: angle, anticlockwise in radians; shear, columns to the right per row upwards; zoom; translation downwards and to
            the right, in shares of the sides; shape (batch, 5).
        size: height and width of input and output.
    """
    height, width = size
    angle, shear, zoom, down, right = moves.unbind(dim=1)
    cos, sin = angle.cos() / zoom, angle.sin() / zoom
    # Of a pixel of the output, seen from the middle: x = across[0] * x + across[1] * y, y = sin * x + cos * y.
    columns = torch.where(flipped, -extent[:, 1], extent[:, 1]) / width
    rows = extent[:, 0] / height
    across = columns * (cos + shear * sin), columns * (shear * cos - sin)
    along = rows * sin, rows * cos
    centre = 2 * start + extent
    offset_x = centre[:, 1] / width - 1 - 2 * (across[0] * right + across[1] * down * (height / width))
    offset_y = centre[:, 0] / height - 1 - 2 * (along[0] * right * (width / height) + along[1] * down)
    first = torch.stack((across[0], across[1] * (height / width), offset_x), dim=1)
    second = torch.stack((along[0] * (width / height), along[1], offset_y), dim=1)
    return torch.stack((first, second), dim=1)


def resample(x: Tensor, maps: Tensor, border: Border, size: tuple[int, int] | None = None) -> Tensor:
    """Return each image read bilinearly through its affine map, shape (batch, channels, *size).

    Args:
        x: images, shape (batch, channels, height, width).
        maps: as ``affine_maps`` returns them, shape (batch, 2, 3).
        border: outside of the image stand the values of its edge, or 0.
        size: height and width of the output; those of x where None.
    """
    height, width = size or (x.shape[2], x.shape[3])
    constants = _constants((height, width), x.device, x.dtype)
    columns, rows = 2 * constants.pixel_centres[1, :width], 2 * constants.pixel_centres[0, :height]
    by_column = torch.addcmul(maps[:, None, :, 2], columns[:, None], maps[:, None, :, 0])
    grid = torch.addcmul(by_column[:, None], rows[:, None, None], maps[:, None, None, :, 1])
    return F.grid_sample(x, grid, padding_mode="border" if border == "edge" else "zeros", align_corners=False)


def change_strokes(x: Tensor, level: Tensor) -> Tensor:
    """Return images of bright strokes on black with thicker or thinner strokes, shape of x: blurred, then cut at a level.

    The cut is a ramp about as steep as the edge of a stroke; what is black stays black, and the brightest value stays.

    Args:
        x: images, shape (batch, channels, height, width).
        level: share of the brightest blurred value that becomes half as bright, in (0, 1); low levels thicken, shape (batch,).
    """
    height, width = x.shape[2:]
    sigma = min(height, width) / STROKE_SIDE
    rows, columns = _stroke_blur(sigma, (height, width), x.device, x.dtype)
    blurred = torch.matmul(rows, torch.matmul(x, columns.T))
    # The steepest slope of a blurred edge is 1 / (sqrt(2 pi) sigma) per pixel; the ramp brings it back to 1.
    half = torch.minimum(level, 1 - level).clamp_max(0.5 / max(1.0, math.sqrt(2 * math.pi) * sigma))
    brightest = blurred.amax(dim=(1, 2, 3)).clamp_min(1e-6)
    slope, offset = 0.5 / (half * brightest), 0.5 - 0.5 * level / half
    cut = torch.addcmul(offset[:, None, None, None], blurred, slope[:, None, None, None]).clamp_(0, 1)
    return cut.mul_(x.amax(dim=(1, 2, 3))[:, None, None, None])


def boxes_as_masks(start: Tensor, extent: Tensor, size: tuple[int, int]) -> Tensor:
    """Return true inside of each box, shape (batch, 1, height, width).

    Args:
        start: first row and column, shape (batch, 2).
        extent: height and width, shape (batch, 2).
        size: of the images.
    """
    inside = []
    for axis, length in enumerate(size):
        distance = _pixels(length, start.device, start.dtype) - start[:, axis : axis + 1]
        inside.append((distance >= 0) & (distance < extent[:, axis : axis + 1]))
    return (inside[0][:, :, None] & inside[1][:, None, :])[:, None]


def interpolation_matrices(positions: Tensor, length: int | None = None) -> Tensor:
    """Return linear interpolation at these positions as matrices, shape (batch, 2, n, length).

    Args:
        positions: shape (batch, 2, n).
        length: number of pixels on the longer side of the input; n where None.
    """
    pixels = _pixels(length or positions.shape[-1], positions.device, positions.dtype)
    return (positions[..., None] - pixels).abs_().neg_().add_(1).clamp_min_(0)


def gaussian_weights(sigma: Tensor, num_taps: int) -> Tensor:
    """Return the weight of a pixel and of those 1, 2, ... away, shape (batch, num_taps); kernels are 2 * num_taps - 1 wide.

    Args:
        sigma: standard deviations in pixels, shape (batch,).
        num_taps: pixels on one side, the centre included.
    """
    distance = _pixels(num_taps, sigma.device, sigma.dtype)
    weights = (distance / sigma[:, None]).square_().mul_(-0.5).exp_()
    return weights / (2 * weights.sum(dim=1, keepdim=True) - 1)


def blur_matrices(weights: Tensor, size: tuple[int, int]) -> Tensor:
    """Return symmetric filters with reflecting borders as matrices, shape (batch, 2, longer side, longer side).

    Args:
        weights: weight of the pixel itself and of those 1, 2, ... away, shape (batch, num_taps).
        size: height and width of the images.
    """
    longer = max(size)
    return (weights @ _blur_basis(weights.shape[1], size, weights.device, weights.dtype)).view(-1, 2, longer, longer)


def apply_matrices(x: Tensor, matrices: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """Return ``matrices[:, 0] @ x @ matrices[:, 1].T`` for every sample and channel, shape (batch, channels, *size).

    Args:
        x: images, shape (batch, channels, height, width).
        matrices: shape (batch, 2, longer side of the output, longer side of the input).
        size: height and width of the output; those of x where None.
    """
    batch, channels, height, width = x.shape
    new_height, new_width = size or (height, width)
    columns = matrices[:, 1, :new_width, :width].transpose(1, 2)
    resized = torch.bmm(x.reshape(batch, channels * height, width), columns).view(batch, channels, height, new_width)
    return torch.matmul(matrices[:, :1, :new_height, :height], resized)


def rotate_quarter_turns(x: Tensor, turns: Tensor) -> Tensor:
    """Return each image turned anticlockwise by its own multiple of 90 degrees, shape of x.

    Args:
        x: square images, shape (batch, channels, size, size).
        turns: whole numbers from 0 to 3, shape (batch,).
    """
    if x.dim() != 4 or x.shape[2] != x.shape[3]:
        raise UserError(f"Quarter turns need square images, shape (batch, channels, size, size), got {tuple(x.shape)}.")
    sources = _quarter_turns(x.shape[2], x.device)[turns]
    return x.flatten(2).gather(2, sources[:, None].expand(-1, x.shape[1], -1)).view_as(x)


@lru_cache(maxsize=32)
def _quarter_turns(size: int, device: torch.device) -> Tensor:
    """Return source pixel of every output pixel for 0, 1, 2, 3 turns, shape (4, size * size)."""
    pixels = torch.arange(size * size, device=device).view(size, size)
    return torch.stack([torch.rot90(pixels, turns).flatten() for turns in range(4)])


@lru_cache(maxsize=32)
def _pixels(count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.arange(count, device=device, dtype=dtype)


class _Constants(NamedTuple):
    """Constants of images of one size; shape (2,) but for the last."""

    size: Tensor
    size_plus_one: Tensor
    one: Tensor
    mirrored: Tensor
    narrow_wide: Tensor
    pixel_centres: Tensor
    """Of rows and of columns, from -1/2 to 1/2 of the side, shape (2, longer side)."""


@lru_cache(maxsize=32)
def _constants(size: tuple[int, int], device: torch.device, dtype: torch.dtype) -> _Constants:
    centres = torch.zeros(2, max(size), dtype=torch.float64)
    for axis, length in enumerate(size):
        centres[axis, :length] = (torch.arange(length) + 0.5) / length - 0.5
    vectors = [size, (size[0] + 1, size[1] + 1), (1, 1), (1, -1), (-1, 1)]
    tensors = [torch.tensor(vector, dtype=torch.float64) for vector in vectors]
    return _Constants(*(tensor.to(device, dtype) for tensor in (*tensors, centres)))


@lru_cache(maxsize=32)
def _stroke_blur(sigma: float, size: tuple[int, int], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a blur of rows and one of columns as matrices, three standard deviations to either side."""
    num_taps = min(math.ceil(3 * sigma) + 1, *size)
    matrices = blur_matrices(gaussian_weights(torch.tensor([sigma], device=device, dtype=dtype), num_taps), size)[0]
    return matrices[0, : size[0], : size[0]], matrices[1, : size[1], : size[1]]


@lru_cache(maxsize=32)
def _blur_basis(num_taps: int, size: tuple[int, int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the share of each tap in the blur matrices, shape (num_taps, 2 * longer side * longer side)."""
    basis = torch.zeros(num_taps, 2, max(size), max(size), dtype=dtype)
    for axis, length in enumerate(size):
        outputs = torch.arange(length)
        for offset in range(1 - num_taps, num_taps):
            inputs = (outputs + offset).abs()
            inputs = torch.where(inputs < length, inputs, 2 * (length - 1) - inputs)
            basis[abs(offset), axis].index_put_((outputs, inputs), torch.ones(length, dtype=dtype), accumulate=True)
    return basis.flatten(1).to(device)
