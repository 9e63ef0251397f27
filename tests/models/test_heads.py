import pytest
import torch
from torch import nn

from unisono.models.heads import Normalized, mlp


def kinds(net: nn.Sequential) -> list[str]:
    return [type(layer).__name__ for layer in net]


def test_projector_of_orchestra():
    net = mlp((512, 512, 512))
    assert kinds(net) == ["Linear", "GroupNorm", "ReLU", "Linear"]
    assert sum(parameter.numel() for parameter in net.parameters()) == 2 * (512 * 512 + 512) + 2 * 512
    assert net(torch.randn(3, 512)).shape == (3, 512)


def test_simsiam_projector_ends_with_a_norm_that_learns_nothing():
    net = mlp((16, 32, 32, 24), norm="batch", last_norm=True)
    assert kinds(net) == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    assert not net[-1].affine
    assert net[1].affine
    output = net(torch.randn(64, 16))
    assert torch.allclose(output.mean(0), torch.zeros(24), atol=1e-5)


def test_without_norm():
    assert kinds(mlp((8, 2048, 128), norm=None)) == ["Linear", "ReLU", "Linear"]
    assert kinds(mlp((8, 4), norm="batch")) == ["Linear"]


def test_bias_only_where_no_batch_norm_cancels_it():
    assert [layer.bias is not None for layer in mlp((4, 4, 4), norm="batch") if isinstance(layer, nn.Linear)] == [False, True]
    assert all(layer.bias is not None for layer in mlp((4, 4, 4), norm="group") if isinstance(layer, nn.Linear))


def test_group_norm_trains_on_a_batch_of_one():
    net = mlp((16, 32, 8), norm="group").train()
    assert net(torch.randn(1, 16)).shape == (1, 8)
    with pytest.raises(ValueError, match="more than 1 value"):
        mlp((16, 32, 8), norm="batch").train()(torch.randn(1, 16))


@pytest.mark.parametrize("arguments", [{"dims": (4,)}, {"dims": (4, 4), "norm": None, "last_norm": True}])
def test_refuses_nonsense(arguments):
    with pytest.raises(ValueError, match=r"an input and an output|needs a norm"):
        mlp(**arguments)


def test_normalized_rows_have_unit_length_and_direction():
    net = nn.Linear(4, 6)
    x = 100 * torch.randn(5, 4)
    rows = Normalized(net)(x)
    assert torch.allclose(rows.norm(dim=1), torch.ones(5))
    assert torch.allclose(rows * net(x).norm(dim=1, keepdim=True), net(x), rtol=1e-4, atol=1e-4)
