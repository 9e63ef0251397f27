import pytest
import torch

from unisono.models.architectures.cct import EncoderLayer
from unisono.models.backbones import ModelConfig, make_backbone


def make(name: str, shape: tuple[int, ...]):
    return make_backbone(ModelConfig(backbone=name), shape, (0.5,), (0.25,))


@pytest.mark.parametrize(
    ("name", "size", "parameters"),
    [("cct-2-3x2", 32, 283_723 - 1_290), ("cct-4-3x2", 32, 480_833), ("cct-4-3x2", 64, 480_833 + 128 * (256 - 64))],
)
def test_parameter_counts(name, size, parameters):
    """The authors' models have 0.28 M (283,723) and 0.48 M parameters with a 10-way classifier of 1,290.

    Tokenizer 27 * 64 + 576 * 128; each layer 2 * 256 + 3 * 128^2 + 3 * (128 + 1) * 128; positions (size / 4)^2 * 128; last norm
    256 and sequence pooling 129.
    """
    assert sum(parameter.numel() for parameter in make(name, (3, size, size)).parameters()) == parameters


@pytest.mark.parametrize("shape", [(3, 64, 64), (3, 32, 32), (1, 28, 28), (2, 9, 14), (3, 1, 1)])
def test_features_have_the_promised_shape(shape):
    backbone = make("cct-4-3x2", shape)
    assert backbone.feature_dim == 128
    features = backbone(torch.rand(2, *shape))
    assert features.shape == (2, 128)
    features.sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


@pytest.mark.parametrize(("width", "feature_dim"), [(0.25, 32), (0.5, 64), (0.001, 2)])
def test_the_width_factor_scales_every_layer(width, feature_dim):
    backbone = make_backbone(ModelConfig(backbone="cct-2-3x2", width=width), (3, 32, 32), (0.5,), (0.25,))
    assert backbone.feature_dim == feature_dim
    assert backbone(torch.rand(2, 3, 32, 32)).shape == (2, feature_dim)
    channels = feature_dim // 2
    dim, layer = feature_dim, 4 * feature_dim + 3 * feature_dim**2 + 3 * (feature_dim + 1) * feature_dim
    parameters = 27 * channels + 9 * channels * dim + 2 * layer + 64 * dim + 2 * dim + dim + 1
    assert sum(parameter.numel() for parameter in backbone.parameters()) == parameters


def test_attention_equals_the_naive_formula():
    torch.manual_seed(0)
    layer = EncoderLayer(8, num_heads=2)
    tokens = torch.randn(3, 5, 8)
    query, key, value = layer.query_key_value(tokens).chunk(3, dim=-1)
    heads = []
    for part in (slice(0, 4), slice(4, 8)):
        scores = query[..., part] @ key[..., part].transpose(1, 2) / 4**0.5
        heads.append(scores.softmax(dim=-1) @ value[..., part])
    assert torch.allclose(layer._attend(tokens), layer.attention_out(torch.cat(heads, dim=-1)), atol=1e-6)


def test_sequence_pooling_is_a_weighted_mean_of_tokens():
    trunk = make("cct-2-3x2", (3, 16, 16)).trunk
    tokens = []
    trunk.norm.register_forward_hook(lambda _, __, output: tokens.append(output))
    features = trunk(torch.rand(2, 3, 16, 16))
    scores = [trunk.importance(token).exp() for token in tokens[0].unbind(1)]
    expected = sum(score * token for score, token in zip(scores, tokens[0].unbind(1), strict=True)) / sum(scores)
    assert torch.allclose(features, expected, atol=1e-5)


def test_positions_matter():
    """A dot that moves by whole tokens, away from the border, is noticed through the positional embedding alone."""
    backbone = make("cct-2-3x2", (1, 64, 64))
    image = torch.zeros(1, 1, 64, 64)
    image[..., 24:26, 24:26] = 1
    moved = image.roll(8, dims=2)
    assert not torch.allclose(backbone(image), backbone(moved), atol=1e-4)
    torch.nn.init.zeros_(backbone.trunk.positions)
    assert torch.allclose(backbone(image), backbone(moved), atol=1e-4)


def test_training_draws_no_random_numbers():
    backbone = make("cct-2-3x2", (3, 16, 16)).train()
    before = torch.get_rng_state()
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(backbone(images), backbone(images))
    assert torch.equal(torch.get_rng_state(), before)
