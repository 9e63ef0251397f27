import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unisono.models.half_precision import in_precision, rounded_once
from unisono.models.micro_batch import in_parts


class Watched(nn.Module):
    """A linear layer that remembers the type of its output."""

    width = 4

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(x)
        self.seen.append(output.dtype)
        return output


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.zeros(2))


@pytest.mark.parametrize(
    ("precision", "inside"),
    [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32), ("auto", torch.float32)],
)
def test_only_the_inside_of_a_network_is_rounded(precision, inside):
    nets = nn.ModuleDict({"net": Watched()})
    whole = nets["net"]
    with in_precision(nets, precision):
        output = nets["net"](torch.rand(5, 3))
        assert not torch.is_autocast_enabled("cpu"), "what the method does with it stays float32"
        assert nets["net"].width == 4
    assert output.dtype == torch.float32
    assert whole.seen == [inside]
    output.sum().backward()
    assert whole.linear.weight.dtype == whole.linear.weight.grad.dtype == torch.float32
    assert nets["net"] is whole


def test_networks_come_back_after_an_error_and_holders_stay():
    nets = nn.ModuleDict({"net": Watched(), "holder": Holder()})
    whole = dict(nets.items())
    with in_precision(nets, "bf16"):
        assert nets["holder"] is whole["holder"]
        assert nets["net"] is not whole["net"]
    with pytest.raises(RuntimeError), in_precision(nets, "bf16"):
        nets["net"](torch.rand(5, 7))
    assert dict(nets.items()) == whole


def test_both_passes_of_a_part_are_rounded():
    nets = nn.ModuleDict({"net": Watched()})
    whole = nets["net"]
    with in_precision(nets, "bf16"), in_parts(nets, 2):
        nets["net"](torch.rand(4, 3)).sum().backward()
    assert whole.seen == [torch.bfloat16] * 4


def test_several_outputs_are_all_float32():
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x @ y, x.bfloat16()

    nets = nn.ModuleDict({"net": Two()})
    with in_precision(nets, "bf16"):
        assert [part.dtype for part in nets["net"](torch.rand(2, 2), torch.rand(2, 2))] == [torch.float32] * 2


class Roundings(TorchDispatchMode):
    """Counts how often a tensor of a shape is rounded to bf16."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_rounding = func is torch.ops.aten._to_copy.default and (kwargs or {}).get("dtype") is torch.bfloat16
        self.number += is_rounding and args[0].shape == self.shape
        return func(*args, **(kwargs or {}))


def test_a_weight_is_rounded_once_in_a_step_of_several_passes():
    nets = nn.ModuleDict({"net": Watched()})
    linear, x = nets["net"].linear, torch.rand(5, 3)
    with in_precision(nets, "bf16"):
        for _ in range(2):
            with Roundings((4, 3)) as roundings, rounded_once("bf16", torch.device("cpu")):
                loss = (nets["net"](x) + nets["net"](x)).sum()
            assert roundings.number == 1
            linear.weight.grad = None
            loss.backward()
            assert torch.equal(linear.weight.grad, 2 * x.bfloat16().sum(dim=0).bfloat16().float().expand(4, 3))
            with torch.no_grad():
                linear.weight += 1  # the next step rounds the weight as it is then


def test_a_pass_without_gradients_takes_none_from_later_ones():
    nets = nn.ModuleDict({"net": Watched()})
    with in_precision(nets, "bf16"), rounded_once("bf16", torch.device("cpu")):
        with torch.no_grad():
            nets["net"](torch.rand(5, 3))
        nets["net"](torch.rand(5, 3)).sum().backward()
    assert nets["net"].linear.weight.grad is not None
