import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

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
