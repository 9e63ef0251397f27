from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from unisono.data.series_views import SeriesAugmentation, SeriesSettings, crop_time, drop_channels, permute_segments

EVERYTHING = SeriesSettings(crop_scale=(0.5, 1.0), noise=0.1, scaling=0.2, channel_dropout=0.3, permute=0.5)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def alike(settings):
    return SeriesAugmentation(settings, settings)


def series(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=generator(99), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(8, 6, 100), (1, 1, 7), (4, 2, 3)])
def test_views_keep_shape_and_type(shape, dtype):
    x = series(*shape, dtype=dtype).requires_grad_()
    before = x.detach().clone()
    views = alike(EVERYTHING)(x, shape[0] // 2, generator())
    assert views.shape == x.shape
    assert views.dtype == dtype
    assert views.isfinite().all()
    assert not views.requires_grad
    assert torch.equal(x, before)


def test_the_generator_alone_decides():
    x, augment = series(6, 3, 50), alike(EVERYTHING)
    assert torch.equal(augment(x, 3, generator(1)), augment(x, 3, generator(1)))
    assert not torch.equal(augment(x, 3, generator(1)), augment(x, 3, generator(2)))


def test_default_settings_return_a_copy():
    x = series(4, 3, 20)
    views = alike(SeriesSettings())(x, 4, generator())
    assert torch.equal(views, x)
    assert views.data_ptr() != x.data_ptr()


def test_time_crop_equals_interpolate():
    x = series(5, 3, 40)
    start, duration = torch.tensor([0.0, 0.0, 7.0, 20.0, 39.0]), torch.tensor([40.0, 13.0, 21.0, 20.0, 1.0])
    found = crop_time(x, start, duration)
    for sample in range(5):
        part = x[sample : sample + 1, :, int(start[sample]) : int(start[sample] + duration[sample])]
        expected = F.interpolate(part, size=40, mode="linear", align_corners=False)[0]
        torch.testing.assert_close(found[sample], expected, atol=1e-5, rtol=0)


def test_segments_stand_in_the_order_of_their_keys():
    x = torch.arange(10.0).view(1, 1, 10).expand(2, 1, 10)
    keys = torch.tensor([[0.9, 0.1, 0.5], [0.9, 0.1, 0.5]])
    found = permute_segments(x, keys, torch.tensor([True, False]))
    # Ten times in three segments: 0-3, 4-6, 7-9.
    assert found[0, 0].tolist() == [4, 5, 6, 7, 8, 9, 0, 1, 2, 3]
    assert found[1, 0].tolist() == list(range(10))


def test_permutation_follows_the_chances_of_each_view():
    x = series(12, 2, 30)
    settings = SeriesSettings(num_segments=6)
    views = SeriesAugmentation(settings, replace(settings, permute=1.0))(x, 5, generator())
    assert torch.equal(views[:5], x[:5])
    assert (views[5:] != x[5:]).any(dim=2).all()
    assert torch.equal(views.sort(dim=2).values, x.sort(dim=2).values)


def test_noise_is_relative_to_each_channel():
    x = series(200, 1, 500) * torch.tensor([1.0, 100.0])[:, None]
    noise = alike(SeriesSettings(noise=0.1))(x, 200, generator()) - x
    torch.testing.assert_close(noise.std(dim=(0, 2)), torch.tensor([0.1, 10.0]), rtol=0.02, atol=0)


def test_scaling_multiplies_whole_channels():
    x = series(500, 3, 4)
    factors = alike(SeriesSettings(scaling=0.2))(x, 500, generator()) / x
    torch.testing.assert_close(factors, factors[:, :, :1].expand_as(factors))
    assert float(factors[:, :, 0].mean()) == pytest.approx(1, abs=0.02)
    assert float(factors[:, :, 0].std()) == pytest.approx(0.2, abs=0.02)


def test_one_channel_always_stays():
    x = torch.ones(2, 3, 4)
    found = drop_channels(x, torch.tensor([[0.1, 0.2, 0.15], [0.9, 0.2, 0.7]]), 0.5)
    assert found[:, :, 0].tolist() == [[0, 1, 0], [1, 0, 1]]


def test_crops_keep_the_asked_share_of_time():
    ramp = torch.arange(100.0).expand(2000, 1, 100)
    views = alike(SeriesSettings(crop_scale=(0.5, 0.8)))(ramp, 2000, generator())
    durations = views.amax(dim=(1, 2)) - views.amin(dim=(1, 2)) + 1
    assert durations.min() == 50
    assert durations.max() == 80
    assert views.min() == 0
    assert views.max() == 99


def test_crops_follow_the_range_of_each_view():
    """A ramp tells the duration of a crop: n times of a ramp of 1 per time span n - 1."""
    x = torch.arange(100.0).expand(40, 1, 100)
    views = SeriesAugmentation(SeriesSettings(crop_scale=(0.8, 0.8)), SeriesSettings(crop_scale=(0.3, 0.3)))(x, 15, generator())
    span = views.amax(dim=(1, 2)) - views.amin(dim=(1, 2))
    assert (span[:15] == 79).all()
    assert (span[15:] == 29).all()
