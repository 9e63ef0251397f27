import math

import pytest
import torch

from unisono.data.colour import LUMA, colour_matrices, recolour

TO_YIQ = torch.tensor([LUMA, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)], dtype=torch.float64)


def luma(image):
    return sum(weight * channel for weight, channel in zip(LUMA, image, strict=True))


def brightened(image, factor):
    return image * factor


def contrasted(image, factor):
    mean = luma(image).mean()
    return (image - mean) * factor + mean


def saturated(image, factor):
    grey = luma(image).expand_as(image)
    return (image - grey) * factor + grey


def turned(image, angle):
    yiq = torch.einsum("ij,jhw->ihw", TO_YIQ, image)
    in_phase = math.cos(angle) * yiq[1] - math.sin(angle) * yiq[2]
    quadrature = math.sin(angle) * yiq[1] + math.cos(angle) * yiq[2]
    return torch.einsum("ij,jhw->ihw", TO_YIQ.inverse(), torch.stack((yiq[0], in_phase, quadrature)))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_one_matrix_equals_the_four_steps_in_any_order(order):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(8, 3, 6, 5, generator=generator, dtype=torch.float64)
    factors = 0.5 + torch.rand(4, 8, generator=generator, dtype=torch.float64)
    factors[3] -= 1
    found = recolour(x, *factors)
    steps = (brightened, contrasted, saturated, turned)
    for sample, image in enumerate(x):
        expected = image
        for step in order:
            expected = steps[step](expected, float(factors[step, sample]))
        torch.testing.assert_close(found[sample], expected, atol=1e-9, rtol=0)


def test_without_saturation_all_channels_are_luma():
    x = torch.rand(2, 3, 4, 4)
    one, zero = torch.ones(2), torch.zeros(2)
    found = recolour(x, one, one, zero, torch.tensor([0.0, 1.0]))
    expected = torch.stack([luma(image) for image in x])[:, None].expand(2, 3, 4, 4)
    torch.testing.assert_close(found, expected)


def test_a_third_of_a_turn_three_times_is_no_turn():
    third = colour_matrices(torch.ones(1), torch.ones(1), torch.tensor([2 * math.pi / 3]))[0]
    torch.testing.assert_close(third @ third @ third, torch.eye(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(third @ torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("channels", [1, 2])
def test_other_channels_keep_to_brightness_and_contrast(channels):
    x = torch.rand(3, channels, 4, 4)
    brightness, contrast = torch.tensor([1.0, 1.3, 0.6]), torch.tensor([1.0, 0.5, 1.4])
    found = recolour(x, brightness, contrast, torch.zeros(3), torch.ones(3))
    for sample, image in enumerate(x):
        expected = ((image - image.mean()) * contrast[sample] + image.mean()) * brightness[sample]
        torch.testing.assert_close(found[sample], expected)
