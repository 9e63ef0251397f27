import itertools

import pytest
import torch
from torch import nn

from unisono.models.backbones import ModelConfig, make_backbone
from unisono.models.nets import get_state, load_state

SHAPES = [(1, 28, 28), (3, 32, 32), (2, 17, 23), (3, 8, 8)]


def make(name: str, shape: tuple[int, ...], **fields: object):
    return make_backbone(ModelConfig(backbone=name, **fields), shape, (0.5,), (0.25,))


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "norm", "stem", "shape"),
    list(itertools.product(["resnet18", "resnet34", "resnet50"], ["batch", "group"], ["3x3", "imagenet"], SHAPES)),
)
def test_features_have_the_promised_shape(name, norm, stem, shape):
    backbone = make(name, shape, norm=norm, stem=stem, width=1 / 16)
    features = backbone(torch.rand(2, *shape))
    assert features.shape == (2, backbone.feature_dim)
    assert backbone.feature_dim == (128 if name == "resnet50" else 32)
    assert features.isfinite().all()
    features.sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(
    ("name", "stem", "parameters", "feature_dim"),
    [
        ("resnet18", "3x3", 11_168_832, 512),
        ("resnet18", "imagenet", 11_176_512, 512),
        ("resnet34", "imagenet", 21_284_672, 512),
        ("resnet50", "imagenet", 23_508_032, 2048),
    ],
)
def test_parameter_counts_are_the_published_ones(name, stem, parameters, feature_dim, norm):
    """torchvision's counts (11,689,512 - 21,797,672 - 25,557,032) without the 1000-way classifier."""
    with torch.device("meta"):
        backbone = make(name, (3, 32, 32), stem=stem, norm=norm)
    assert count(backbone) == parameters
    assert backbone.feature_dim == feature_dim


@pytest.mark.parametrize(("stem", "side"), [("3x3", 4), ("imagenet", 1)])
def test_downsampling_on_the_meta_device(stem, side):
    with torch.device("meta"):
        trunk = make("resnet18", (3, 32, 32), stem=stem).trunk
        maps = trunk.stages(trunk.pool(trunk.conv(torch.empty(2, 3, 32, 32))))
    assert maps.shape == (2, 512, side, side)


def test_quarter_width():
    trunk = make("resnet18", (1, 28, 28), width=0.25).trunk
    assert [stage[-1].conv2.out_channels for stage in trunk.stages] == [16, 32, 64, 128]
    assert trunk.feature_dim == 128


@pytest.mark.parametrize("channels", [1, 3])
def test_activations_are_channels_last_and_weights_contiguous(channels):
    """Both matter to speed: see the module's docstring."""
    trunk = make("resnet18", (channels, 8, 8), width=0.25).trunk
    seen = []
    trunk.stages.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    trunk(torch.rand(2, channels, 8, 8)).sum().backward()
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert all(parameter.is_contiguous() for parameter in trunk.parameters())


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_in_place_operations_keep_the_gradient_right(norm):
    backbone = make("resnet18", (1, 8, 8), norm=norm, width=1 / 32).double()
    images = torch.rand(3, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(backbone, images.requires_grad_(), fast_mode=True, atol=1e-4)


def test_shortcut_is_a_strided_convolution():
    """Written as pooling and an unstrided convolution, because a strided one crashes: see ``_shortcut``."""
    shortcut = make("resnet18", (3, 16, 16), width=0.25).trunk.stages[1][0].shortcut
    x = torch.randn(2, 16, 7, 8)
    expected = nn.functional.conv2d(x, shortcut[1].weight, stride=2)
    assert torch.allclose(shortcut[:2](x), expected, atol=1e-6)


def test_groupnorm_treats_samples_alone_and_memory_format_does_not_matter():
    backbone = make("resnet18", (3, 16, 16), width=0.125, norm="group")
    images = torch.rand(4, 3, 16, 16)
    together = backbone(images)
    assert torch.allclose(together[:1], backbone(images[:1]), atol=1e-5)
    assert torch.allclose(together, backbone(images.contiguous(memory_format=torch.channels_last)), atol=1e-5)


def test_state_makes_twins_of_two_nets():
    first, second = (make("resnet18", (3, 16, 16), width=0.125, norm="batch").eval() for _ in range(2))
    images = torch.rand(2, 3, 16, 16)
    assert not torch.equal(first(images), second(images))
    load_state(second, get_state(first))
    assert torch.equal(first(images), second(images))
