import math

import pytest
import torch
from torch.nn import functional as F

from unisono.core.errors import UserError
from unisono.data.geometry import (
    affine_maps,
    apply_matrices,
    blur_matrices,
    boxes_as_masks,
    change_strokes,
    crop_boxes,
    gaussian_weights,
    interpolation_matrices,
    resample,
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


def naive_affine(image, box, flipped, moves, border):
    """Read every output pixel at the place that undoes translation, zoom, rotation, shear, flip and crop, one after another."""
    height, width = image.shape
    (top, left), (tall, wide) = box
    angle, shear, zoom, down, right = moves
    views = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            x, y = column + 0.5 - width / 2 - right * width, height / 2 - row - 0.5 + down * height  # y goes upwards
            x, y = x / zoom, y / zoom
            x, y = x * math.cos(angle) + y * math.sin(angle), -x * math.sin(angle) + y * math.cos(angle)
            x -= shear * y
            x = -x if flipped else x
            source = (top + tall / 2 - y * tall / height - 0.5, left + wide / 2 + x * wide / width - 0.5)
            views[row, column] = naive_bilinear(image, source, border)
    return views


def naive_bilinear(image, place, border):
    total = 0.0
    height, width = image.shape
    if border == "edge":
        place = min(max(place[0], 0), height - 1), min(max(place[1], 0), width - 1)
    for row in (math.floor(place[0]), math.floor(place[0]) + 1):
        for column in (math.floor(place[1]), math.floor(place[1]) + 1):
            if 0 <= row < height and 0 <= column < width:
                total += float(image[row, column]) * (1 - abs(place[0] - row)) * (1 - abs(place[1] - column))
    return total


@pytest.mark.parametrize("border", ["edge", "black"])
@pytest.mark.parametrize("size", [(9, 9), (6, 11), (11, 6)])
def test_affine_maps_equal_a_naive_loop(size, border):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, 2, *size, generator=generator, dtype=torch.float64)
    moves = torch.rand(4, 5, generator=generator, dtype=torch.float64) - torch.tensor([0.5, 0.5, -0.6, 0.5, 0.5]).double()
    start, extent = (
        torch.tensor([[1, 0], [0, 2], [0, 0], [2, 1]]).double(),
        torch.tensor([[4, 5], [6, 3], size, [3, 3]]).double(),
    )
    flipped = torch.tensor([False, True, False, True])
    views = resample(x, affine_maps(start, extent, flipped, moves, size), border)
    for i in range(4):
        box = (start[i].tolist(), extent[i].tolist())
        for channel in range(2):
            expected = naive_affine(x[i, channel], box, bool(flipped[i]), moves[i].tolist(), border)
            torch.testing.assert_close(views[i, channel], expected, atol=1e-6, rtol=0)


def assert_near(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def moves_of(angle=0.0, shear=0.0, zoom=1.0, down=0.0, right=0.0):
    return torch.tensor([[angle, shear, zoom, down, right]], dtype=torch.float64)


def moved(x, **moves):
    size = (x.shape[2], x.shape[3])
    start, extent = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([size], dtype=torch.float64)
    return resample(x, affine_maps(start, extent, torch.tensor([False]), moves_of(**moves), size), "black")


def test_closed_forms_of_affine_maps():
    x = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert_near(moved(x), x)
    assert_near(moved(x, angle=math.pi / 2), torch.rot90(x, 1, (2, 3)))
    assert_near(moved(x, down=0.25)[:, :, 2:], x[:, :, :-2])
    assert_near(moved(x, right=0.25)[:, :, :, 2:], x[:, :, :, :-2])
    assert moved(x, right=0.25)[:, :, :, :2].abs().max() < 1e-6
    assert_near(moved(x, zoom=0.5)[:, :, 2:-2, 2:-2], F.avg_pool2d(x, 2))
    slanted = moved(x, shear=2.0)[0, 0]  # the row 1/2 above the middle moves by one column to the right
    assert_near(slanted[3, 1:], x[0, 0, 3, :-1])
    assert_near(slanted[4, :-1], x[0, 0, 4, 1:])


def test_strokes_are_a_blur_and_a_ramp():
    """An upright edge, far from the borders, is blurred to the normal distribution function and cut by a ramp."""
    size, level = 56, 0.3  # blurred by 2 pixels
    x = torch.zeros(1, 1, size, size, dtype=torch.float64)
    x[..., 28:] = 0.8
    pixels = torch.arange(size, dtype=torch.float64)
    weights = torch.exp(-((pixels[:, None] - pixels) ** 2) / (2 * 2.0**2)) * ((pixels[:, None] - pixels).abs() <= 6)
    blurred = weights[:, 28:].sum(dim=1) / weights[28].sum()
    half = 0.5 / (math.sqrt(2 * math.pi) * 2)
    expected = 0.8 * ((blurred - level) / (2 * half) + 0.5).clamp(0, 1)
    views = change_strokes(x, torch.tensor([level]).double())
    torch.testing.assert_close(views[0, 0, 20, 10:46], expected[10:46], atol=1e-6, rtol=0)
    assert (views[..., :20] == 0).all()


def test_strokes_keep_black_images_and_the_brightest_value():
    x = torch.zeros(2, 1, 8, 8)
    x[1, 0, 2:6, 3:5] = 0.6
    views = change_strokes(x, torch.tensor([0.2, 0.2]))
    assert (views[0] == 0).all()
    assert float(views[1].max()) == pytest.approx(0.6)
    assert float(views[1, 0, 0, 0]) == 0


def test_masks_are_true_inside_of_boxes():
    mask = boxes_as_masks(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[2.0, 3.0], [0.0, 0.0]]), (5, 7))
    expected = torch.zeros(2, 1, 5, 7, dtype=torch.bool)
    expected[0, 0, 1:3, 2:5] = True
    assert torch.equal(mask, expected)


def test_a_crop_is_enlarged_from_the_stored_image():
    """Boxes of images of 6x9 to views of 20x20, as torch resizes the cut-out itself."""
    x = torch.rand(3, 2, 6, 9, generator=torch.Generator().manual_seed(0))
    start, extent = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, 5.0]]), torch.tensor([[6.0, 9.0], [4.0, 5.0], [2.0, 3.0]])
    flipped = torch.tensor([False, False, True])
    positions = sample_positions(start, extent, flipped, (20, 20))
    views = apply_matrices(x, interpolation_matrices(positions, 9), (20, 20))
    for row, ((top, left), (height, width)) in enumerate(zip(start.int().tolist(), extent.int().tolist(), strict=True)):
        cut = x[row : row + 1, :, top : top + height, left : left + width]
        expected = F.interpolate(cut, size=(20, 20), mode="bilinear", align_corners=False)
        torch.testing.assert_close(views[row : row + 1], expected.flip(3) if flipped[row] else expected)


def test_a_rotation_is_enlarged_from_the_stored_image():
    """A quarter turn of the whole image, read on a finer grid."""
    x = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    whole = torch.zeros(1, 2), torch.full((1, 2), 8.0), torch.tensor([False])
    maps = affine_maps(*whole, torch.tensor([[math.pi / 2, 0.0, 1.0, 0.0, 0.0]]), (8, 8))
    turned = torch.rot90(x, 1, (2, 3))
    expected = F.interpolate(turned, size=(16, 16), mode="bilinear", align_corners=False)
    torch.testing.assert_close(resample(x, maps, "edge", (16, 16)), expected, atol=1e-5, rtol=1e-4)
