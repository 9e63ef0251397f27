import numpy as np
import torch
from PIL import Image

from unisono.data.sources.convert import resize, with_channels
from unisono.data.sources.images import image_tensor

# Away from 0 and 255, where Pillow clips between its two passes.
IMAGES = torch.randint(80, 176, (3, 3, 24, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def pillow(image):
    return Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))


def test_resizing_is_pillows_crop_and_bicubic_resize():
    for size in (8, 40):
        for image, resized in zip(IMAGES, resize(IMAGES, size), strict=True):
            expected = pillow(image).crop((3, 0, 27, 24)).resize((size, size), Image.Resampling.BICUBIC)
            difference = resized.int() - image_tensor(expected, 3).int()
            # Pillow rounds after each of its two passes.
            assert difference.abs().max() <= 2


def test_squeezing_is_pillows_bicubic_resize_of_the_whole():
    for image, resized in zip(IMAGES, resize(IMAGES, 10, squeeze=True), strict=True):
        difference = resized.int() - image_tensor(pillow(image), 3, (10, 10), squeeze=True).int()
        assert difference.abs().max() <= 1
        expected = image_tensor(pillow(image).resize((10, 10), Image.Resampling.BICUBIC), 3)
        assert torch.equal(image_tensor(pillow(image), 3, (10, 10), squeeze=True), expected)


def test_the_centre_is_kept():
    wide = torch.zeros(1, 1, 4, 12, dtype=torch.uint8)
    wide[..., 4:8] = 200
    assert resize(wide, 2).eq(200).all()


def test_the_right_size_stays_the_same_tensor():
    square = IMAGES[..., :24]
    assert resize(square, 24) is square
    assert resize(IMAGES[:0], 5).shape == (0, 3, 5, 5)


def test_grey_is_pillows_grey():
    for image, grey in zip(IMAGES, with_channels(IMAGES, 1), strict=True):
        assert (grey.int() - image_tensor(pillow(image), 1).int()).abs().max() <= 1


def test_grey_to_rgb_and_back_is_the_identity():
    grey = IMAGES[:, :1]
    assert torch.equal(with_channels(with_channels(grey, 3), 1), grey)
    assert with_channels(IMAGES, 3) is IMAGES
