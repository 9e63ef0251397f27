import pickle
import re
from pathlib import Path

import pytest
import torch

from unisono.core.config import make_section
from unisono.core.errors import UserError
from unisono.data import views as module
from unisono.data.image_views import ImageAugmentation, ImageSettings
from unisono.data.series_views import SeriesAugmentation
from unisono.data.views import PRESETS, ViewsConfig, make_views

IMAGES_ONLY = ["digits", "clothing", "photos"]
PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def settings_of(shape=(3, 32, 32), **values):
    augment = make_views(ViewsConfig(**values), shape).augment
    return augment.first, augment.second


SHAPES = [(3, 32, 32), (1, 28, 28), (3, 20, 12), (6, 50)]
CASES = [(preset, shape) for preset in PRESETS for shape in SHAPES if len(shape) == 3 or preset not in IMAGES_ONLY]


@pytest.mark.parametrize(("preset", "shape"), CASES)
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


COLOURS = {"flip": 0.5, "jitter": 0.8, "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "grey": 0.2}
STRONG = {**COLOURS, "brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}
ORCHESTRA = {**COLOURS, "crop_scale": (0.5, 1.0), "saturation": 0.2}
WIDE = {"crop_scale": (0.08, 1.0)}
IN_PAPERS = {
    "simclr": ({**COLOURS, **WIDE}, {**COLOURS, **WIDE}),
    "fedmcc": ({**COLOURS, **WIDE}, {**COLOURS, **WIDE}),
    "cc": ({**COLOURS, **WIDE}, {**COLOURS, **WIDE}),
    "cc-stl": ({**STRONG, **WIDE}, {**STRONG, **WIDE}),
    "cc-imagenet": ({**STRONG, **WIDE, "blur": 0.5}, {**STRONG, **WIDE, "blur": 0.5}),
    "easyfl": ({**STRONG, **WIDE}, {**STRONG, **WIDE}),
    "byol": ({**ORCHESTRA, "blur": 0.5}, {**ORCHESTRA, "blur": 0.1, "solarise": 0.2}),
    "orchestra": ({**ORCHESTRA, "blur": 0.5}, {**ORCHESTRA, "blur": 0.1, "solarise": 0.2}),
    "orchestra-simclr": ({**ORCHESTRA, "blur": 0.5}, {**ORCHESTRA, "blur": 0.5}),
    "orchestra-byol": ({**ORCHESTRA, "blur": 1.0}, {**ORCHESTRA, "blur": 0.1, "solarise": 0.2}),
    "orchestra-supervised": ({"crop_scale": (0.5, 1.0), "flip": 0.5}, {"crop_scale": (0.5, 1.0), "flip": 0.5}),
    "cfcl": ({**WIDE, "flip": 0.5, "blur": 0.5}, {**WIDE, "flip": 0.5, "blur": 0.5}),
    "none": ({}, {}),
}


@pytest.mark.parametrize("preset", IN_PAPERS)
def test_presets_are_those_of_the_papers(preset):
    assert settings_of(preset=preset) == tuple(ImageSettings(**values) for values in IN_PAPERS[preset])


def test_first_views_of_specloss_keep_their_colours():
    """Its strengths of colours do not count where jitter and grey have probability 0."""
    first, second = settings_of(preset="orchestra-specloss")
    assert (first.crop_scale, first.flip, first.jitter, first.grey, first.blur) == ((0.08, 1.0), 0.5, 0.0, 0.0, 0.0)
    assert second == ImageSettings(**{**COLOURS, "crop_scale": (0.2, 1.0), "blur": 0.5})
    x = torch.full((8, 3, 16, 16), 0.5)
    x[:, 0] = 0.7
    views = make_views(ViewsConfig(preset="orchestra-specloss"), (3, 16, 16))
    torch.testing.assert_close(views.first(x, generator()), x)
    assert (views.second(x, generator()) - x).abs().amax() > 0.01


def test_presets_fit_their_kind_of_data():
    digits, clothing, photos = (settings_of(preset=preset)[0] for preset in IMAGES_ONLY)
    assert (digits.rotation, digits.shear, digits.zoom, digits.flip, digits.jitter) == (30.0, 0.4, (0.7, 1.3), 0.0, 0.0)
    assert digits.stroke > 0
    assert digits.translation > 0
    assert clothing == ImageSettings(crop_scale=(0.4, 1.0), flip=0.5, jitter=0.8, brightness=0.4, contrast=0.4, blur=0.5)
    assert photos == ImageSettings(**{**COLOURS, "crop_scale": (0.2, 1.0), "blur": 0.5})


@pytest.mark.parametrize("preset", IMAGES_ONLY)
def test_presets_for_images_refuse_series(preset):
    with pytest.raises(UserError, match=f"views.preset '{preset}' is for images; series have simclr, byol"):
        make_views(ViewsConfig(preset=preset), (3, 50))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_documented(preset):
    assert f"\n- ``{preset}``:" in module.__doc__
    assert re.search(rf"^\| `{preset}`[ ,]", PAGE.read_text(), flags=re.MULTILINE)


def test_every_number_can_be_overridden():
    values = {"crop_scale": (0.3, 0.9), "crop_ratio": (0.5, 2.0), "blur_sigma": (0.2, 0.3), "zoom": (0.8, 1.1)}
    values |= {"flip": 0.1, "jitter": 0.2, "brightness": 0.3, "contrast": 0.5, "saturation": 0.6, "hue": 0.4, "grey": 0.7}
    values |= {"rotation": 12.0, "shear": 0.3, "translation": 0.15, "border": "black", "stroke": 0.1, "noise": 0.05}
    values |= {"erase": 0.25, "erase_scale": (0.1, 0.2), "blur": 0.11, "solarise": 0.13}
    second = {"crop_scale": (0.2, 0.4), "jitter": 0.3, "grey": 0.8, "blur": 0.12, "solarise": 0.14}
    found = settings_of(**values, **{f"second_{name}": value for name, value in second.items()})
    assert found == (ImageSettings(**values), ImageSettings(**{**values, **second}))
    series, other = settings_of(
        (3, 50), noise=0.3, scaling=0.4, channel_dropout=0.5, permute=0.6, second_permute=0.7, num_segments=9
    )
    assert (series.noise, series.scaling, series.channel_dropout) == (0.3, 0.4, 0.5)
    assert (series.permute, other.permute, series.num_segments) == (0.6, 0.7, 9)


def test_what_is_said_of_one_view_holds_for_both_unless_the_second_has_its_own():
    def blur_of(**values):
        return tuple(settings.blur for settings in settings_of(preset="byol", **values))

    assert blur_of(blur=0.0) == (0.0, 0.0)
    assert blur_of(second_blur=0.3) == (0.5, 0.3)
    assert blur_of(blur=0.2, second_blur=0.3) == (0.2, 0.3)
    assert blur_of() == (0.5, 0.1)


def test_shape_decides_between_images_and_series():
    assert isinstance(make_views(ViewsConfig(), (3, 8, 8)).augment, ImageAugmentation)
    assert isinstance(make_views(ViewsConfig(), (3, 8)).augment, SeriesAugmentation)
    with pytest.raises(UserError, match=r"got samples of shape \(8,\)"):
        make_views(ViewsConfig(), (8,))


@pytest.mark.parametrize(("shape", "field"), [((3, 50), "grey"), ((3, 50), "second_blur"), ((3, 8, 8), "scaling")])
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
        ({"rotation": 200}, r"views.rotation must be less than or equal to 180, got 200"),
        ({"shear": -0.1}, r"views.shear must be greater than or equal to 0, got -0.1"),
        ({"zoom": [1.3, 0.7]}, r"views.zoom must be two numbers with 0 < low <= high, got \[1.3, 0.7\]"),
        ({"translation": 1.5}, r"views.translation must be less than or equal to 1, got 1.5"),
        ({"stroke": 0.5}, r"views.stroke must be less than 0.5, got 0.5"),
        ({"border": "white"}, r"views.border must be 'edge' or 'black', got 'white'"),
        ({"noise": -1}, r"views.noise must be greater than or equal to 0, got -1"),
        ({"erase": 2}, r"views.erase must be less than or equal to 1, got 2"),
        ({"erase_scale": [0.1, 2]}, r"views.erase_scale must be two numbers <= 1"),
        ({"second_crop_scale": [0.9, 0.1]}, r"views.second_crop_scale must be two numbers with 0 < low <= high"),
        ({"preset": "simclear"}, r"views.preset must be 'digits', .* or 'none', or .* file.py:function, got 'simclear'"),
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
