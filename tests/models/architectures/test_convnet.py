import pytest
import torch
from torch import nn

from unisono.core.config import make_section
from unisono.core.errors import UserError
from unisono.models.architectures.convnet import MOST_FEATURES, fitting_widths
from unisono.models.backbones import Backbone, ModelConfig, make_backbone
from unisono.models.nets import state_view


def make(shape: tuple[int, ...], **fields: object) -> Backbone:
    config = make_section(ModelConfig, {"backbone": "convnet", **fields}, "model")
    return make_backbone(config, shape, (0.5,), (0.25,))


def convolutions(backbone: Backbone) -> list[nn.Conv2d]:
    return [module for module in backbone.modules() if isinstance(module, nn.Conv2d)]


@pytest.mark.parametrize(
    ("shape", "widths", "feature_dim"),
    [
        ((1, 8, 8), (32, 64), 256),
        ((1, 28, 28), (32, 64, 128), 2048),
        ((3, 32, 32), (32, 64, 128, 256), 1024),
        ((3, 64, 64), (32, 64, 128, 256, 256), 1024),
        ((3, 96, 96), (32, 64, 128, 256, 256), 2304),
        ((1, 3, 2), (32,), 64),
        ((1, 1, 1), (32,), 32),
    ],
)
def test_default_stages_fit_the_image(shape, widths, feature_dim):
    backbone = make(shape)
    assert tuple(conv.out_channels for conv in convolutions(backbone)) == widths
    assert all(conv.stride == (2, 2) for conv in convolutions(backbone))
    assert backbone.feature_dim == feature_dim
    assert backbone(torch.rand(2, *shape)).shape == (2, feature_dim)


@pytest.mark.parametrize("side", [*range(1, 130), 224, 256])
def test_features_stay_few_for_every_size(side):
    assert make((1, side, side), width=1 / 32).feature_dim * 32 <= MOST_FEATURES
    assert len(fitting_widths(side)) <= 7


def test_larger_maps_are_averaged_unless_told_otherwise():
    assert make((3, 63, 190), options={"widths": [32, 64, 128]}).feature_dim == 128
    assert make((3, 63, 190), options={"widths": [32, 64, 128], "pool": "flatten"}).feature_dim == 128 * 8 * 24
    assert make((1, 28, 28), options={"pool": "mean"}).feature_dim == 128


def test_the_small_network_of_contrastive_clustering():
    backbone = make((1, 28, 28), options={"widths": [16, 32], "feature_dim": 128})
    linear = backbone.trunk.linear
    assert isinstance(linear, nn.Linear)
    assert (linear.in_features, linear.out_features, backbone.feature_dim) == (32 * 7 * 7, 128, 128)
    assert backbone(torch.rand(4, 1, 28, 28)).shape == (4, 128)


def test_depth_adds_convolutions_that_keep_the_size():
    backbone = make((3, 32, 32), options={"widths": [8, 16], "depth": 3})
    assert [(conv.out_channels, conv.stride[0]) for conv in convolutions(backbone)] == [
        (8, 2), (8, 1), (8, 1), (16, 2), (16, 1), (16, 1),
    ]  # fmt: skip
    assert backbone(torch.rand(2, 3, 32, 32)).shape == (2, 16 * 8 * 8)


@pytest.mark.parametrize(("norm", "kind"), [("batch", nn.BatchNorm2d), ("group", nn.GroupNorm)])
def test_every_convolution_is_normalised(norm, kind):
    backbone = make((1, 28, 28), norm=norm)
    assert sum(isinstance(module, kind) for module in backbone.modules()) == 3
    statistics = [name for name in state_view(backbone) if "running" in name]
    assert len(statistics) == (6 if norm == "batch" else 0)


def test_width_scales_given_and_fitting_widths():
    assert [conv.out_channels for conv in convolutions(make((1, 28, 28), width=0.5))] == [16, 32, 64]
    assert [conv.out_channels for conv in convolutions(make((1, 28, 28), width=0.5, options={"widths": [10, 1]}))] == [5, 1]


@pytest.mark.parametrize("channels", [1, 3])
def test_activations_are_channels_last_and_weights_contiguous(channels):
    backbone, seen = make((channels, 28, 28)), []
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(lambda module, inputs, output: seen.append(output))
    backbone(torch.rand(4, channels, 28, 28))
    assert len(seen) == 3
    assert all(output.is_contiguous(memory_format=torch.channels_last) for output in seen)
    assert all(conv.weight.is_contiguous() for conv in convolutions(backbone))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": [3]}, r"model.options.width is not a known option. Did you mean 'widths'"),
        ({"widths": [0]}, r"model.options.widths.0 must be greater than or equal to 1, got 0"),
        ({"widths": "wide"}, r"model.options.widths must be a list, got 'wide'"),
        ({"depth": 0}, r"model.options.depth must be greater than or equal to 1, got 0"),
        ({"pool": "max"}, r"model.options.pool must be 'auto', 'flatten' or 'mean', got 'max'"),
        ({"feature_dim": -1}, r"model.options.feature_dim must be greater than or equal to 0, got -1"),
    ],
)
def test_impossible_options_are_named(options, message):
    with pytest.raises(UserError, match=message):
        make((1, 28, 28), options=options)


def test_series_are_refused():
    with pytest.raises(UserError, match=r"takes images.*resnet1d"):
        make((3, 128))
