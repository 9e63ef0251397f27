import pytest
import torch

from unisono.core.errors import UserError
from unisono.models.backbones import ModelConfig, make_backbone


def make(shape: tuple[int, ...]):
    return make_backbone(ModelConfig(backbone="cfcl-cnn"), shape, (0.5,), (0.25,))


def test_parameter_count_on_the_papers_images():
    """(9 + 1) * 5 + (9 * 5 + 1) * 8 + (8 * 36 + 1) * 128 + (128 + 1) * 64; the paper counts 45,433."""
    assert sum(parameter.numel() for parameter in make((1, 28, 28)).parameters()) == 45_666


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 7, 7), (2, 11, 30)])
def test_features_have_the_promised_shape(shape):
    backbone = make(shape)
    assert backbone.feature_dim == 64
    assert backbone(torch.rand(2, *shape)).shape == (2, 64)


def test_features_take_both_signs():
    features = make((1, 28, 28))(torch.rand(8, 1, 28, 28))
    assert (features < 0).any()
    assert (features > 0).any()


def test_tiny_images_are_refused():
    with pytest.raises(UserError, match="at least 7x7, got 28x6"):
        make((1, 28, 6))
