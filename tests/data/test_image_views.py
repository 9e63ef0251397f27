import pytest
import torch

from unisono.data import image_views
from unisono.data.image_views import ImageAugmentation, ImageSettings

EVERYTHING = ImageSettings(
    crop_scale=(0.2, 1.0),
    flip=0.5,
    jitter=0.8,
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.1,
    grey=0.2,
    blur=(0.5, 0.1),
    solarise=(0.0, 0.2),
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(*shape, dtype=torch.float32):
    return torch.rand(*shape, generator=generator(99), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [(16, 3, 32, 32), (16, 1, 28, 28), (1, 3, 32, 32), (5, 3, 12, 20), (5, 1, 20, 12), (3, 2, 8, 8)]
)
def test_views_keep_shape_type_and_range(shape, dtype):
    x = images(*shape, dtype=dtype).requires_grad_()
    views = ImageAugmentation(EVERYTHING)(x, shape[0] // 2, generator())
    assert views.shape == x.shape
    assert views.dtype == dtype
    assert not views.requires_grad
    assert views.min() >= 0
    assert views.max() <= 1
    assert not torch.equal(views, x)


def test_the_generator_alone_decides():
    x, augment = images(6, 3, 16, 16), ImageAugmentation(EVERYTHING)
    before = x.clone()
    assert torch.equal(augment(x, 3, generator(1)), augment(x, 3, generator(1)))
    assert not torch.equal(augment(x, 3, generator(1)), augment(x, 3, generator(2)))
    assert torch.equal(x, before)


def test_samples_are_drawn_independently():
    x = images(1, 3, 16, 16).expand(8, 3, 16, 16)
    views = ImageAugmentation(EVERYTHING)(x, 8, generator())
    assert len(views.flatten(1).unique(dim=0)) == 8


def test_chunks_do_not_matter(monkeypatch):
    x, augment = images(50, 3, 16, 16), ImageAugmentation(EVERYTHING)
    whole = augment(x, 20, generator())
    monkeypatch.setattr(image_views, "CHUNK_ELEMENTS", 1)
    torch.testing.assert_close(augment(x, 20, generator()), whole, atol=1e-6, rtol=0)


def test_default_settings_return_a_copy():
    x = images(4, 3, 8, 8)
    views = ImageAugmentation(ImageSettings())(x, 4, generator())
    assert torch.equal(views, x)
    assert views.data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    "settings",
    [
        ImageSettings(jitter=1.0),
        ImageSettings(crop_scale=(0.999999, 1.0), crop_ratio=(1.0, 1.0)),
        ImageSettings(blur=(1.0, 1.0), blur_sigma=(1e-3, 1e-3)),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_zero_strength_is_the_identity(settings, channels):
    x = images(4, channels, 28, 28)
    torch.testing.assert_close(ImageAugmentation(settings)(x, 2, generator()), x, atol=1e-5, rtol=0)


def test_certain_flip():
    x = images(4, 3, 12, 20)
    torch.testing.assert_close(ImageAugmentation(ImageSettings(flip=1.0))(x, 4, generator()), x.flip(3), atol=1e-5, rtol=0)


def test_flip_happens_as_often_as_asked():
    x = images(1, 1, 4, 4).expand(4000, 1, 4, 4)
    views = ImageAugmentation(ImageSettings(flip=0.3))(x, 4000, generator())
    flipped = (views - x.flip(3)).abs().amax(dim=(1, 2, 3)) < 1e-5
    assert float(flipped.float().mean()) == pytest.approx(0.3, abs=0.03)


def test_grey_is_luma():
    x = images(4, 3, 8, 8)
    views = ImageAugmentation(ImageSettings(grey=1.0))(x, 4, generator())
    expected = (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(dim=1, keepdim=True).expand_as(x)
    torch.testing.assert_close(views, expected, atol=1e-5, rtol=0)


def test_jitter_stays_within_its_strength():
    """Of a uniform grey image contrast, saturation and hue change nothing, so brightness can be read off."""
    x = torch.full((4000, 3, 2, 2), 0.5)
    settings = ImageSettings(jitter=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    factors = ImageAugmentation(settings)(x, 4000, generator())[:, 0, 0, 0] / 0.5
    changed = (factors - 1).abs() > 1e-4
    assert float(changed.float().mean()) == pytest.approx(0.8, abs=0.03)
    assert factors.min() >= 0.6 - 1e-5
    assert factors.max() <= 1.4 + 1e-5
    assert float(factors[changed].std()) == pytest.approx(0.8 / 12**0.5, abs=0.01)


def test_first_and_second_views_have_their_own_chances():
    x = images(10, 3, 8, 8)
    views = ImageAugmentation(ImageSettings(solarise=(0.0, 1.0)))(x, 6, generator())
    assert torch.equal(views[:6], x[:6])
    torch.testing.assert_close(views[6:], torch.where(x[6:] >= 0.5, 1 - x[6:], x[6:]))


def test_crops_cover_the_asked_share_of_the_image():
    """The range of a ramp that a crop shows tells its width: n pixels of a ramp of 1/64 per pixel span (n - 1) / 64."""
    ramp = (torch.arange(64) / 64).expand(2000, 1, 64, 64)
    settings = ImageSettings(crop_scale=(0.25, 0.5), crop_ratio=(1.0, 1.0))
    views = ImageAugmentation(settings)(ramp, 2000, generator())
    width = ((views.amax(dim=(1, 2, 3)) - views.amin(dim=(1, 2, 3))) * 64 + 1).round()
    assert width.min() == 32
    assert width.max() == 45  # 64 / sqrt(2)
    assert views.amin() == 0
    assert float((width**2 / 64**2).mean()) == pytest.approx(0.375, abs=0.01)
