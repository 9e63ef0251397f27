import pickle

import pytest
import torch

from unisono.core.config import make_section
from unisono.core.errors import UserError
from unisono.data.image_views import ImageAugmentation, ImageSettings
from unisono.data.series_views import SeriesAugmentation
from unisono.data.views import ViewsConfig, make_views

PRESETS = ["simclr", "byol", "fedmcc", "cfcl", "none"]
SHAPES = [(3, 32, 32), (1, 28, 28), (3, 20, 12), (6, 50)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def settings_of(shape=(3, 32, 32), **values):
    return make_views(ViewsConfig(**values), shape).augment.settings


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_preset_makes_views_of_every_kind(preset, shape):
    views, x = make_views(ViewsConfig(preset=preset), shape), torch.rand(4, *shape)
    for made in (views.first(x, generator()), views.second(x, generator()), *views.pair(x, generator())):
        assert made.shape == x.shape
        assert torch.equal(made, x) == (preset == "none")
    one, two = views.pair(x, generator())
    again = views.pair(x, generator())
    assert torch.equal(one, two) == (preset == "none")
    assert torch.equal(one, again[0])
    assert torch.equal(two, again[1])


@pytest.mark.parametrize("shape", [(3, 16, 16), (6, 50)])
def test_a_pair_is_made_of_a_first_and_a_second_view(shape):
    field = "solarise" if len(shape) == 3 else "permute"
    views = make_views(ViewsConfig(preset="none", **{field: 0.0, f"second_{field}": 1.0}), shape)
    x = torch.rand(8, *shape)
    first, second = views.pair(x, generator())
    assert torch.equal(first, x)
    assert torch.equal(views.first(x, generator()), x)
    assert not torch.equal(second, x)
    assert not torch.equal(views.second(x, generator()), x)


def test_presets_are_those_of_the_papers():
    colours = {"flip": 0.5, "jitter": 0.8, "brightness": 0.4, "contrast": 0.4, "hue": 0.1, "grey": 0.2}
    simclr = ImageSettings(crop_scale=(0.08, 1.0), saturation=0.4, **colours)
    byol = ImageSettings(crop_scale=(0.5, 1.0), saturation=0.2, blur=(0.5, 0.1), solarise=(0.0, 0.2), **colours)
    assert settings_of(preset="simclr") == settings_of(preset="fedmcc") == settings_of() == simclr
    assert settings_of(preset="byol") == byol
    assert settings_of(preset="cfcl") == ImageSettings(crop_scale=(0.08, 1.0), flip=0.5, blur=(0.5, 0.5))


def test_every_number_can_be_overridden():
    values = {"crop_scale": (0.3, 0.9), "crop_ratio": (0.5, 2.0), "blur_sigma": (0.2, 0.3)}
    values |= {"flip": 0.1, "jitter": 0.2, "brightness": 0.3, "contrast": 0.5, "saturation": 0.6, "hue": 0.4, "grey": 0.7}
    pairs = {"blur": 0.11, "second_blur": 0.12, "solarise": 0.13, "second_solarise": 0.14}
    assert settings_of(**values, **pairs) == ImageSettings(**values, blur=(0.11, 0.12), solarise=(0.13, 0.14))
    series = settings_of((3, 50), noise=0.3, scaling=0.4, channel_dropout=0.5, permute=0.6, second_permute=0.7, num_segments=9)
    assert (series.noise, series.scaling, series.channel_dropout) == (0.3, 0.4, 0.5)
    assert (series.permute, series.num_segments) == ((0.6, 0.7), 9)


def test_what_is_said_of_one_view_holds_for_both_unless_the_second_has_its_own():
    assert settings_of(preset="byol", blur=0.0).blur == (0.0, 0.0)
    assert settings_of(preset="byol", second_blur=0.3).blur == (0.5, 0.3)
    assert settings_of(preset="byol", blur=0.2, second_blur=0.3).blur == (0.2, 0.3)
    assert settings_of(preset="byol").blur == (0.5, 0.1)


def test_shape_decides_between_images_and_series():
    assert isinstance(make_views(ViewsConfig(), (3, 8, 8)).augment, ImageAugmentation)
    assert isinstance(make_views(ViewsConfig(), (3, 8)).augment, SeriesAugmentation)
    with pytest.raises(UserError, match=r"got samples of shape \(8,\)"):
        make_views(ViewsConfig(), (8,))


@pytest.mark.parametrize(("shape", "field"), [((3, 50), "grey"), ((3, 50), "second_blur"), ((3, 8, 8), "noise")])
def test_a_number_without_meaning_is_refused(shape, field):
    with pytest.raises(UserError, match=f"views.{field} has no meaning for"):
        make_views(ViewsConfig(**{field: 0.5}), shape)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"crop_scale": [0.0, 1.0]}, r"views.crop_scale must be two numbers with 0 < low <= high, got \[0.0, 1.0\]"),
        ({"crop_scale": [0.5, 1.5]}, r"views.crop_scale must be two numbers <= 1"),
        ({"crop_ratio": [2, 1]}, r"views.crop_ratio must be two numbers with 0 < low <= high"),
        ({"flip": 1.5}, r"views.flip must be less than or equal to 1, got 1.5"),
        ({"preset": "simclear"}, r"views.preset must be 'simclr', 'byol', 'fedmcc', 'cfcl' or 'none', got 'simclear'"),
    ],
)
def test_mistakes_name_the_field(values, message):
    with pytest.raises(UserError, match=message):
        make_section(ViewsConfig, values, "views")


def test_config_comes_from_toml_values():
    assert make_section(ViewsConfig, {"preset": "byol", "crop_scale": [0.2, 1]}, "views").crop_scale == (0.2, 1.0)


def test_views_travel_between_processes():
    views, x = make_views(ViewsConfig(preset="byol"), (3, 8, 8)), torch.rand(2, 3, 8, 8)
    assert torch.equal(pickle.loads(pickle.dumps(views)).first(x, generator()), views.first(x, generator()))
