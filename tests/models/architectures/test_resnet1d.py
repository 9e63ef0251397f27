import pytest
import torch

from unisono.models.backbones import ModelConfig, make_backbone


def make(shape: tuple[int, ...], **fields: object):
    return make_backbone(ModelConfig(backbone="resnet1d", **fields), shape, (0.0,), (1.0,))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("shape", [(1, 50), (9, 128), (3, 1)])
def test_features_have_the_promised_shape(shape, norm):
    backbone = make(shape, norm=norm, width=0.25)
    assert backbone.feature_dim == 32
    features = backbone(torch.randn(2, *shape))
    assert features.shape == (2, 32)
    features.sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


def test_parameter_count():
    """Convolutions by hand; every convolution has a norm with two numbers per output channel."""
    first = 3 * 64 * 7 + 64 * 64 * (5 + 3) + 3 * 64
    second = 64 * 128 * 7 + 128 * 128 * (5 + 3) + 64 * 128
    third = 128 * 128 * (7 + 5 + 3)
    norms = 2 * (4 * 64 + 4 * 128 + 3 * 128)
    assert sum(parameter.numel() for parameter in make((3, 40)).parameters()) == first + second + third + norms


def test_any_length_will_do():
    backbone = make((2, 64), width=0.25)
    assert backbone(torch.randn(3, 2, 97)).shape == (3, 32)


def test_in_place_operations_keep_the_gradient_right():
    backbone = make((2, 9), width=1 / 8).double()
    series = torch.randn(2, 2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(backbone, series.requires_grad_(), fast_mode=True, atol=1e-4)
