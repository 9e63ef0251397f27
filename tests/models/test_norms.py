import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unisono.core.errors import UserError
from unisono.models.backbones import ModelConfig, make_backbone
from unisono.models.norms import make_norm, num_groups


@pytest.mark.parametrize(
    ("channels", "groups"), [(512, 32), (256, 32), (128, 16), (64, 8), (32, 4), (16, 2), (8, 1), (5, 1), (1, 1), (2048, 32)]
)
def test_num_groups_by_hand(channels, groups):
    assert num_groups(channels) == groups


@given(st.integers(1, 4096))
def test_num_groups_is_the_largest_that_fits(channels):
    def fits(groups: int) -> bool:
        return channels % groups == 0 and channels // groups >= 8

    groups = num_groups(channels)
    assert groups == 1 or fits(groups)
    assert not any(fits(larger) for larger in range(groups + 1, 33))


@pytest.mark.parametrize(("spatial_dims", "kind"), [(0, nn.BatchNorm1d), (1, nn.BatchNorm1d), (2, nn.BatchNorm2d)])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_norm_fits_its_input(norm, spatial_dims, kind):
    layer = make_norm(norm, 16, spatial_dims)
    assert isinstance(layer, kind if norm == "batch" else nn.GroupNorm)
    x = torch.randn(4, 16, *[5] * spatial_dims)
    y = layer(x)
    assert y.shape == x.shape
    dims = (0, *range(2, x.ndim)) if norm == "batch" else tuple(range(1, x.ndim))
    assert torch.allclose(y.mean(dims), torch.zeros(1), atol=1e-5)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_affine(norm):
    assert len(list(make_norm(norm, 8, 0).parameters())) == 2
    assert not list(make_norm(norm, 8, 0, affine=False).parameters())


def test_groups_by_number_match_a_loop():
    """Every group of channels has mean 0 and variance 1 by itself."""
    x = torch.randn(3, 12, 4, 4) * torch.arange(1, 13).view(12, 1, 1)
    y = make_norm("group", 12, 2, groups=3)(x)
    for sample in range(3):
        for group in range(3):
            part = x[sample, 4 * group : 4 * group + 4]
            expected = (part - part.mean()) / (part.var(correction=0) + 1e-5).sqrt()
            torch.testing.assert_close(y[sample, 4 * group : 4 * group + 4], expected, atol=1e-5, rtol=1e-4)


def test_groups_must_divide_the_channels():
    with pytest.raises(UserError, match=r"model\.groups must divide the channels of every layer, got 3 for 16 channels\."):
        make_norm("group", 16, 2, groups=3)
    assert isinstance(make_norm("batch", 16, 2, groups=3), nn.BatchNorm2d)


@pytest.mark.parametrize(("backbone", "shape"), [("convnet", (1, 28, 28)), ("resnet18", (3, 8, 8)), ("resnet1d", (2, 16))])
def test_every_norm_of_an_encoder_has_the_groups_of_the_config(backbone, shape):
    def groups(number: int | None) -> set[int]:
        config = ModelConfig(backbone=backbone, width=0.25, norm="group", groups=number)
        net = make_backbone(config, shape, (0.5,), (0.25,))
        return {module.num_groups for module in net.modules() if isinstance(module, nn.GroupNorm)}

    assert groups(2) == {2}
    assert groups(None) != {2}
