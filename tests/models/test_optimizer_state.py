from __future__ import annotations

import pytest
import torch
from torch import nn

from unisono.models.optimizer_state import get_optimizer_state, load_optimizer_state
from unisono.models.optimizers import Optimizer


def make(kind: str, net: nn.Module) -> Optimizer:
    return Optimizer(kind, list(net.parameters()), 0.1, momentum=0.9)  # type: ignore[arg-type]


def steps(net: nn.Module, optimizer: Optimizer, number: int) -> None:
    x = torch.linspace(-1, 1, 12).view(4, 3)
    for _ in range(number):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_goes_on_where_it_stopped(kind: str) -> None:
    torch.manual_seed(0)
    whole, parted = nn.Linear(3, 2), nn.Linear(3, 2)
    parted.load_state_dict(whole.state_dict())
    steps(whole, make(kind, whole), 5)
    first = make(kind, parted)
    steps(parted, first, 2)
    memory = get_optimizer_state(first, dict(parted.named_parameters()))
    second = make(kind, parted)
    load_optimizer_state(second, dict(parted.named_parameters()), memory)
    before = {name: tensor.clone() for name, tensor in memory.items()}
    steps(parted, second, 3)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parted.parameters(), strict=True))
    assert all(torch.equal(memory[name], before[name]) for name in memory)


def test_without_memory_it_would_end_elsewhere() -> None:
    torch.manual_seed(0)
    whole, parted = nn.Linear(3, 2), nn.Linear(3, 2)
    parted.load_state_dict(whole.state_dict())
    steps(whole, make("adam", whole), 4)
    steps(parted, make("adam", parted), 2)
    steps(parted, make("adam", parted), 2)
    assert not torch.equal(whole.weight, parted.weight)


def test_unknown_parameter_is_named() -> None:
    net = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="'bolt'"):
        load_optimizer_state(make("sgd", net), dict(net.named_parameters()), {"bolt#momentum_buffer": torch.ones(2)})


def test_new_optimizer_remembers_nothing() -> None:
    net = nn.Linear(3, 2)
    assert get_optimizer_state(make("adam", net), dict(net.named_parameters())) == {}
