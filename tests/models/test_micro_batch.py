from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unisono.losses.contrastive import nt_xent
from unisono.models.backbones import ModelConfig, make_backbone
from unisono.models.heads import mlp
from unisono.models.micro_batch import InParts, can_take_parts, in_parts
from unisono.models.nets import build_seeded


def make_nets(norm: str = "group") -> nn.ModuleDict:
    def build() -> nn.ModuleDict:
        encoder = make_backbone(ModelConfig(width=0.125, norm=norm), (1, 8, 8), (0.5,), (0.25,))  # type: ignore[arg-type]
        return nn.ModuleDict({"encoder": encoder, "projector": mlp([encoder.feature_dim, 16, 8], norm=norm)})  # type: ignore[arg-type]

    return build_seeded(build, 0).double()


def samples(num: int) -> Tensor:
    return torch.rand(num, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def loss_of(nets: nn.ModuleDict, x: Tensor) -> Tensor:
    z_a, z_b = nets["projector"](nets["encoder"](x)).chunk(2)
    return nt_xent(z_a, z_b, 0.5)


def gradients(nets: nn.ModuleDict, x: Tensor, num_rows: int | None) -> dict[str, Tensor]:
    nets.zero_grad()
    with in_parts(nets, num_rows):
        loss_of(nets, x).backward()
    return {name: parameter.grad.clone() for name, parameter in nets.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("num_rows", [1, 3, 4, 12, 100])
def test_gradient_is_that_of_the_whole_batch(num_rows: int) -> None:
    nets, x = make_nets(), samples(12)
    whole = gradients(nets, x, None)
    assert len(whole) == len(list(nets.parameters()))
    torch.testing.assert_close(gradients(nets, x, num_rows), whole)


def test_frozen_batch_norm_is_exact_too() -> None:
    nets, x = make_nets("batch").eval(), samples(8)
    assert isinstance(nets, nn.ModuleDict)
    torch.testing.assert_close(gradients(nets, x, 3), gradients(nets, x, None))


def test_batch_norm_that_trains_is_not() -> None:
    """Why it is refused: the statistics are those of a part."""
    nets, x = make_nets("batch"), samples(8)
    whole, parts = gradients(nets, x, None), gradients(nets, x, 4)
    assert not all(torch.allclose(parts[name], whole[name]) for name in whole)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return x * self.weight


def test_every_part_passes_twice_with_a_gradient_and_once_without() -> None:
    net = Counting()
    parts = InParts(net, 4)
    with torch.no_grad():
        assert parts(torch.ones(10, 3)).shape == (10, 3)
    assert net.seen == [4, 4, 2]
    net.seen.clear()
    parts(torch.ones(10, 3)).sum().backward()
    assert sorted(net.seen) == [2, 2, 4, 4, 4, 4]
    torch.testing.assert_close(net.weight.grad, torch.full((3,), 10.0))


def test_networks_are_themselves_again_afterwards() -> None:
    nets = make_nets()
    before = dict(nets.items())
    with in_parts(nets, 2):
        assert all(isinstance(net, InParts) for net in nets.values())
    assert dict(nets.items()) == before
    with pytest.raises(KeyError), in_parts(nets, 2):
        nets["nonsense"](samples(2))
    assert dict(nets.items()) == before
    assert list(nets) == ["encoder", "projector"]


class Vectors(nn.Module):
    """Holds tensors and has no forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.zeros(2))


def test_what_a_network_knows_can_still_be_asked() -> None:
    nets = nn.ModuleDict({"net": Counting(), "vectors": Vectors()})
    with in_parts(nets, 2):
        assert nets["net"].seen == []
        assert isinstance(nets["vectors"], Vectors)
        with pytest.raises(AttributeError):
            _ = nets["net"].nonsense


def test_what_cannot_take_parts() -> None:
    assert can_take_parts(make_nets("group"))
    assert not can_take_parts(make_nets("batch"))
    assert not can_take_parts(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))


def test_an_input_with_a_gradient_gets_it() -> None:
    net, x = nn.Linear(3, 2), torch.randn(7, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(net(x).square().sum(), x)
    InParts(net, 2)(x).square().sum().backward()
    torch.testing.assert_close(x.grad, expected)


def test_the_second_pass_has_the_number_format_of_the_first() -> None:
    formats = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            formats.append(y.dtype)
            return y

    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = InParts(Watched(3, 2), 2)(torch.randn(4, 3))
    y.float().sum().backward()
    assert formats == [torch.bfloat16] * 4
