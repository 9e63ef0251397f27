from dataclasses import replace

import pytest
import torch

from unisono.data import image_views
from unisono.data.image_views import ImageAugmentation, ImageSettings

SEPARABLE = ImageSettings(
    crop_scale=(0.2, 1.0), flip=0.5, jitter=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, grey=0.2, blur=0.5
)
EVERYTHING = replace(
    SEPARABLE, rotation=30.0, shear=0.3, zoom=(0.7, 1.3), translation=0.2, stroke=0.2, noise=0.1, erase=0.5, solarise=0.2
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def alike(settings):
    return ImageAugmentation(settings, settings)


def images(*shape, dtype=torch.float32):
    return torch.rand(*shape, generator=generator(99), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [(16, 3, 32, 32), (16, 1, 28, 28), (1, 3, 32, 32), (5, 3, 12, 20), (5, 1, 20, 12), (3, 2, 8, 8)]
)
@pytest.mark.parametrize("settings", [(SEPARABLE, SEPARABLE), (EVERYTHING, EVERYTHING), (SEPARABLE, EVERYTHING)])
def test_views_keep_shape_type_and_range(shape, dtype, settings):
    x = images(*shape, dtype=dtype).requires_grad_()
    views = ImageAugmentation(*settings)(x, shape[0] // 2, generator())
    assert views.shape == x.shape
    assert views.dtype == dtype
    assert not views.requires_grad
    assert views.min() >= 0
    assert views.max() <= 1
    assert not torch.equal(views, x)


def test_the_generator_alone_decides():
    x, augment = images(6, 3, 16, 16), alike(EVERYTHING)
    before = x.clone()
    assert torch.equal(augment(x, 3, generator(1)), augment(x, 3, generator(1)))
    assert not torch.equal(augment(x, 3, generator(1)), augment(x, 3, generator(2)))
    assert torch.equal(x, before)


def test_samples_are_drawn_independently():
    x = images(1, 3, 16, 16).expand(8, 3, 16, 16)
    views = alike(EVERYTHING)(x, 8, generator())
    assert len(views.flatten(1).unique(dim=0)) == 8


@pytest.mark.parametrize("settings", [SEPARABLE, EVERYTHING])
def test_chunks_do_not_matter(monkeypatch, settings):
    x, augment = images(50, 3, 16, 16), ImageAugmentation(settings, replace(settings, crop_scale=(0.5, 0.9)))
    whole = augment(x, 20, generator())
    monkeypatch.setattr(image_views, "CHUNK_ELEMENTS", 1)
    torch.testing.assert_close(augment(x, 20, generator()), whole, atol=1e-6, rtol=0)


def test_default_settings_return_a_copy():
    x = images(4, 3, 8, 8)
    views = alike(ImageSettings())(x, 4, generator())
    assert torch.equal(views, x)
    assert views.data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    "settings",
    [
        ImageSettings(jitter=1.0),
        ImageSettings(crop_scale=(0.999999, 1.0), crop_ratio=(1.0, 1.0)),
        ImageSettings(blur=1.0, blur_sigma=(1e-3, 1e-3)),
        ImageSettings(noise=1e-9),
        ImageSettings(rotation=1e-6, shear=1e-9, translation=1e-9, zoom=(1.0, 1.0 + 1e-9)),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_zero_strength_is_the_identity(settings, channels):
    x = images(4, channels, 28, 28)
    torch.testing.assert_close(alike(settings)(x, 2, generator()), x, atol=1e-5, rtol=0)


def test_certain_flip():
    x = images(4, 3, 12, 20)
    torch.testing.assert_close(alike(ImageSettings(flip=1.0))(x, 4, generator()), x.flip(3), atol=1e-5, rtol=0)


def test_flip_happens_as_often_as_asked():
    x = images(1, 1, 4, 4).expand(4000, 1, 4, 4)
    views = alike(ImageSettings(flip=0.3))(x, 4000, generator())
    flipped = (views - x.flip(3)).abs().amax(dim=(1, 2, 3)) < 1e-5
    assert float(flipped.float().mean()) == pytest.approx(0.3, abs=0.03)


def test_grey_is_luma():
    x = images(4, 3, 8, 8)
    views = alike(ImageSettings(grey=1.0))(x, 4, generator())
    expected = (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(dim=1, keepdim=True).expand_as(x)
    torch.testing.assert_close(views, expected, atol=1e-5, rtol=0)


def test_jitter_stays_within_its_strength():
    """Of a uniform grey image contrast, saturation and hue change nothing, so brightness can be read off."""
    x = torch.full((4000, 3, 2, 2), 0.5)
    settings = ImageSettings(jitter=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    factors = alike(settings)(x, 4000, generator())[:, 0, 0, 0] / 0.5
    changed = (factors - 1).abs() > 1e-4
    assert float(changed.float().mean()) == pytest.approx(0.8, abs=0.03)
    assert factors.min() >= 0.6 - 1e-5
    assert factors.max() <= 1.4 + 1e-5
    assert float(factors[changed].std()) == pytest.approx(0.8 / 12**0.5, abs=0.01)


def test_first_and_second_views_have_their_own_chances():
    x = images(10, 3, 8, 8)
    views = ImageAugmentation(ImageSettings(), ImageSettings(solarise=1.0))(x, 6, generator())
    assert torch.equal(views[:6], x[:6])
    torch.testing.assert_close(views[6:], torch.where(x[6:] >= 0.5, 1 - x[6:], x[6:]))


def test_crops_cover_the_asked_share_of_the_image():
    """The range of a ramp that a crop shows tells its width: n pixels of a ramp of 1/64 per pixel span (n - 1) / 64."""
    ramp = (torch.arange(64) / 64).expand(2000, 1, 64, 64)
    settings = ImageSettings(crop_scale=(0.25, 0.5), crop_ratio=(1.0, 1.0))
    views = alike(settings)(ramp, 2000, generator())
    width = ((views.amax(dim=(1, 2, 3)) - views.amin(dim=(1, 2, 3))) * 64 + 1).round()
    assert width.min() == 32
    assert width.max() == 45  # 64 / sqrt(2)
    assert views.amin() == 0
    assert float((width**2 / 64**2).mean()) == pytest.approx(0.375, abs=0.01)


def test_views_crop_and_change_colours_as_their_branch_says():
    """A ramp tells the crop, a uniform grey image the brightness; the first views of both stay as they are."""
    first, second = ImageSettings(), ImageSettings(crop_scale=(0.25, 0.25), crop_ratio=(1.0, 1.0), jitter=1.0, brightness=0.4)
    ramp = (torch.arange(64) / 64).expand(20, 1, 64, 64)
    views = ImageAugmentation(first, replace(second, brightness=0.0))(ramp, 12, generator())
    torch.testing.assert_close(views[:12], ramp[:12], atol=1e-6, rtol=0)
    width = (views[12:].amax(dim=(1, 2, 3)) - views[12:].amin(dim=(1, 2, 3))) * 64 + 1
    torch.testing.assert_close(width, torch.full((8,), 32.0), atol=1e-3, rtol=0)
    grey = torch.full((20, 3, 4, 4), 0.5)
    views = ImageAugmentation(first, second)(grey, 12, generator())
    torch.testing.assert_close(views[:12], grey[:12])
    assert ((views[12:] - 0.5).abs().amax(dim=(1, 2, 3)) > 1e-4).all()


@pytest.mark.parametrize("num_first", [0, 3, 10])
def test_a_view_does_not_depend_on_the_other_branch(num_first):
    """Rows have their own draws: those of second views are the same, whatever first views are."""
    x, other = images(10, 3, 16, 16), replace(EVERYTHING, crop_scale=(0.6, 0.9), jitter=0.1, blur=0.9)
    mixed = ImageAugmentation(EVERYTHING, other)(x, num_first, generator())
    torch.testing.assert_close(mixed[:num_first], alike(EVERYTHING)(x, 10, generator())[:num_first], atol=1e-6, rtol=0)
    torch.testing.assert_close(mixed[num_first:], alike(other)(x, 10, generator())[num_first:], atol=1e-6, rtol=0)


def angle_of(image):
    """Angle of the longer axis of the ink, anticlockwise in degrees, and the centre (row, column) in pixels from the middle."""
    size = image.shape[-1]
    place = torch.arange(size, dtype=image.dtype) - (size - 1) / 2
    mass = image.sum()
    row, column = (image.sum(dim=1) @ place) / mass, (image.sum(dim=0) @ place) / mass
    y, x = -(place - row), place - column
    xx, yy, xy = image.sum(dim=0) @ x**2, image.sum(dim=1) @ y**2, torch.einsum("ij,i,j->", image, y, x)
    return float(torch.rad2deg(torch.atan2(2 * xy, xx - yy) / 2)), float(row), float(column)


def bar(count, size=65, dtype=torch.float64):
    """A horizontal bar in the middle of black images."""
    x = torch.zeros(count, 1, size, size, dtype=dtype)
    middle, half = size // 2, size // 4
    x[:, :, middle - 2 : middle + 3, middle - half : middle + half + 1] = 1
    return x


def test_angles_fill_the_asked_range():
    views = alike(ImageSettings(rotation=40.0, border="black"))(bar(400), 200, generator())
    angles = torch.tensor([angle_of(view[0])[0] for view in views])
    assert angles.abs().max() <= 40.2
    assert float(angles.mean()) == pytest.approx(0, abs=3)
    assert float(angles.std()) == pytest.approx(80 / 12**0.5, abs=2)


def test_translation_and_zoom_fill_the_asked_ranges():
    views = alike(ImageSettings(translation=0.2, border="black"))(bar(400), 200, generator())
    places = torch.tensor([angle_of(view[0])[1:] for view in views])
    assert places.abs().max() <= 0.2 * 65 + 0.01
    torch.testing.assert_close(places.std(dim=0), torch.full((2,), 0.4 * 65 / 12**0.5), atol=0.8, rtol=0)
    assert abs(float(torch.corrcoef(places.T)[0, 1])) < 0.15
    views = alike(ImageSettings(zoom=(0.5, 1.5), border="black"))(bar(400), 200, generator())
    areas = views.sum(dim=(1, 2, 3)) / bar(1).sum()
    assert float(areas.min()) == pytest.approx(0.25, abs=0.08)
    assert float(areas.max()) == pytest.approx(2.25, abs=0.1)
    assert float(areas.sqrt().mean()) == pytest.approx(1.0, abs=0.03)


def test_shear_fills_the_asked_range():
    """The centre of a sheared upright bar's upper end moves by shear times its height."""
    views = alike(ImageSettings(shear=0.4, border="black"))(bar(400).transpose(2, 3), 200, generator())
    place = torch.arange(65, dtype=torch.float64) - 32
    top = views[:, 0, 22]
    shears = (top @ place) / top.sum(dim=1) / 10
    assert shears.abs().max() <= 0.41
    assert float(shears.std()) == pytest.approx(0.8 / 12**0.5, abs=0.02)


def test_noise_has_the_asked_strength():
    views = alike(ImageSettings(noise=0.1))(torch.full((500, 1, 16, 16), 0.5, dtype=torch.float64), 250, generator())
    deviations = views.std(dim=(1, 2, 3))
    assert float(deviations.max()) == pytest.approx(0.1, abs=0.012)
    assert float(deviations.mean()) == pytest.approx(0.05, abs=0.004)
    assert float(views.mean()) == pytest.approx(0.5, abs=0.001)


def test_erased_boxes_have_the_asked_share():
    x = torch.ones(4000, 2, 40, 40)
    views = alike(ImageSettings(erase=0.3, erase_scale=(0.1, 0.2)))(x, 2000, generator())
    gone = (views == 0).float().mean(dim=(1, 2, 3))
    assert set(views.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(views[:, 0], views[:, 1])
    assert float((gone > 0).float().mean()) == pytest.approx(0.3, abs=0.03)
    assert float(gone[gone > 0].mean()) == pytest.approx(0.15, abs=0.005)
    assert gone[gone > 0].min() > 0.08
    rows, columns = (views[:, 0] == 0).any(dim=2).sum(dim=1), (views[:, 0] == 0).any(dim=1).sum(dim=1)
    assert torch.equal((views[:, 0] == 0).sum(dim=(1, 2)), rows * columns)


def test_strokes_get_thicker_and_thinner():
    views = alike(ImageSettings(stroke=0.3))(bar(400, size=29), 200, generator())
    areas = views.sum(dim=(1, 2, 3)) / bar(1, size=29).sum()
    assert areas.min() < 0.85
    assert areas.max() > 1.2
    assert (views[:, :, 0, 0] == 0).all()
    assert (views.amax(dim=(1, 2, 3)) == 1).all()


@pytest.mark.parametrize("shape", [(8, 8), (6, 9)])
def test_views_of_another_size_than_the_samples(shape):
    x = torch.rand(5, 3, *shape, generator=torch.Generator().manual_seed(0))
    plain = ImageAugmentation(ImageSettings(), ImageSettings(), 20)(x, 3, torch.Generator().manual_seed(1))
    torch.testing.assert_close(plain, torch.nn.functional.interpolate(x, size=(20, 20), mode="bilinear", align_corners=False))
    colours = ImageSettings(jitter=0.8, brightness=0.4, hue=0.1, grey=0.2, noise=0.1, solarise=0.2)
    everything = replace(colours, crop_scale=(0.2, 1.0), flip=0.5, blur=0.5, erase=0.5)
    for settings in (everything, replace(everything, rotation=20.0, stroke=0.1)):
        views = ImageAugmentation(settings, settings, 20)(x, 3, torch.Generator().manual_seed(1))
        assert views.shape == (5, 3, 20, 20)
        assert bool(((views >= 0) & (views <= 1)).all())


def test_the_size_of_the_samples_changes_nothing():
    x = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    settings = ImageSettings(crop_scale=(0.2, 1.0), flip=0.5, jitter=0.8, brightness=0.4, blur=0.5, rotation=20.0, erase=0.5)
    views = [ImageAugmentation(settings, settings, edge)(x, 3, torch.Generator().manual_seed(1)) for edge in (None, 8)]
    assert torch.equal(*views)
