import math

import pytest
import torch
from torch.nn import functional as F

from unisono.core.errors import UserError
from unisono.data.geometry import (
    apply_matrices,
    blur_matrices,
    crop_boxes,
    gaussian_weights,
    interpolation_matrices,
    rotate_quarter_turns,
    sample_positions,
)

SIZES = [(32, 32), (28, 28), (12, 20), (20, 12), (8, 1)]


def draw_boxes(size, count=200, seed=0):
    uniform = torch.rand(count, 4, generator=torch.Generator().manual_seed(seed))
    area = (0.08 + 0.92 * uniform[:, 0]) * size[0] * size[1]
    half_log_ratio = (uniform[:, 1] - 0.5) * math.log(4 / 3)
    return crop_boxes(torch.stack((area, half_log_ratio, uniform[:, 2], uniform[:, 3]), dim=1), size)


@pytest.mark.parametrize("size", SIZES)
def test_boxes_lie_inside_the_image(size):
    start, extent = draw_boxes(size)
    assert torch.equal(start, start.round())
    assert torch.equal(extent, extent.round())
    assert (extent >= 1).all()
    assert (start >= 0).all()
    assert (start + extent <= torch.tensor(size)).all()


def test_boxes_have_the_area_and_shape_that_were_drawn():
    draws = torch.tensor([[400.0, math.log(1.21) / 2, 0.5, 0.0], [900.0, 0.0, 0.999, 0.0]])
    start, extent = crop_boxes(draws, (32, 32))
    # sqrt(400) = 20, wider by 1.1 and lower by 1.1; then sqrt(900) = 30 with places 0, 1, 2 to stand at.
    assert extent.tolist() == [[18, 22], [30, 30]]
    assert start.tolist() == [[7, 0], [2, 0]]


def test_every_place_is_drawn_equally_often():
    places = (torch.arange(30_000) + 0.5) / 30_000
    draws = torch.stack((torch.full_like(places, 900.0), torch.zeros_like(places), places, places), dim=1)
    start, _ = crop_boxes(draws, (32, 32))
    assert torch.bincount(start[:, 0].long()).tolist() == [10_000] * 3


@pytest.mark.parametrize("size", SIZES)
def test_crop_resize_and_flip_equal_interpolate(size):
    x = torch.rand(40, 3, *size, generator=torch.Generator().manual_seed(1))
    start, extent = draw_boxes(size, 40)
    flipped = torch.arange(40) % 2 == 0
    found = apply_matrices(x, interpolation_matrices(sample_positions(start, extent, flipped, size)))
    for sample, image in enumerate(x):
        top, left = (int(v) for v in start[sample])
        height, width = (int(v) for v in extent[sample])
        crop = image[None, :, top : top + height, left : left + width]
        expected = F.interpolate(crop, size=size, mode="bilinear", align_corners=False)[0]
        expected = expected.flip(2) if flipped[sample] else expected
        torch.testing.assert_close(found[sample], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("size", "num_taps"), [((32, 32), 2), ((32, 32), 4), ((12, 20), 3), ((5, 3), 3)])
def test_blur_equals_direct_convolution(size, num_taps):
    x = torch.rand(6, 2, *size, generator=torch.Generator().manual_seed(1))
    sigma = torch.tensor([0.1, 0.5, 1.0, 1.5, 2.0, 3.0])
    found = apply_matrices(x, blur_matrices(gaussian_weights(sigma, num_taps), size))
    reach = num_taps - 1
    distance = torch.arange(-reach, reach + 1)
    for sample in range(len(x)):
        line = torch.exp(-(distance**2) / (2 * sigma[sample] ** 2))
        kernel = torch.outer(line, line) / line.sum() ** 2
        padded = F.pad(x[sample][:, None], (reach, reach, reach, reach), mode="reflect")
        torch.testing.assert_close(found[sample], F.conv2d(padded, kernel[None, None])[:, 0], atol=1e-5, rtol=0)


def test_kernels_sum_to_one_and_vanish_with_sigma():
    weights = gaussian_weights(torch.tensor([1e-3, 0.7, 50.0]), 3)
    torch.testing.assert_close(weights[:, 0] + 2 * weights[:, 1:].sum(dim=1), torch.ones(3))
    assert weights[0].tolist() == [1, 0, 0]
    torch.testing.assert_close(weights[2], torch.full((3,), 0.2), atol=1e-3, rtol=0)


def test_quarter_turns_equal_rot90():
    x = torch.rand(9, 3, 6, 6)
    turns = torch.arange(9) % 4
    expected = torch.stack([torch.rot90(image, int(k), (1, 2)) for image, k in zip(x, turns, strict=True)])
    assert torch.equal(rotate_quarter_turns(x, turns), expected)


@pytest.mark.parametrize("shape", [(2, 3, 6, 7), (2, 3, 6)])
def test_quarter_turns_need_square_images(shape):
    with pytest.raises(UserError, match="Quarter turns need square images"):
        rotate_quarter_turns(torch.zeros(shape), torch.tensor([0, 1]))
