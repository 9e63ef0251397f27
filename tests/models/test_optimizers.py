"""Optimisers of clients: bit-identical to torch.optim, with less memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

from unisono.models.optimizers import Optimizer, watchers

RATE, DECAY, MOMENTUM = 0.03, 1e-3, 0.9


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 33), nn.ReLU(), nn.Linear(33, 5, bias=False))


def torchs(kind: str, net: nn.Module) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.Adam(net.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    return torch.optim.SGD(net.parameters(), lr=RATE, weight_decay=DECAY, momentum=MOMENTUM, fused=True)


def ours(kind: str, net: nn.Module) -> Optimizer:
    return Optimizer(kind, list(net.parameters()), RATE, DECAY, MOMENTUM)  # type: ignore[arg-type]


def loss_of(net: nn.Module, step: int) -> torch.Tensor:
    x = torch.randn(6, 7, generator=torch.Generator().manual_seed(step))
    return (net(x) * net(x + 1)).square().mean()  # each weight is used twice


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("inside", [False, True])
def test_steps_have_the_bits_of_torch(kind: str, inside: bool) -> None:
    expected, net = network(), network()
    reference, optimizer = torchs(kind, expected), ours(kind, net)
    for step in range(4):
        optimizer.is_last = step == 3
        reference.zero_grad()
        loss_of(expected, step).backward()
        reference.step()
        optimizer.zero_grad()
        if inside:
            with optimizer.inside_backward():
                loss_of(net, step).backward()
                assert all(parameter.grad is None for parameter in net.parameters()), "gradients are dropped at once"
                optimizer.step()
        else:
            loss_of(net, step).backward()
            optimizer.step()
        assert same(net, expected)


def test_the_only_step_keeps_no_momentum_and_is_bit_identical() -> None:
    expected, net = network(), network()
    reference, optimizer = torchs("sgd", expected), ours("sgd", net)
    optimizer.is_last = True
    for each, model in ((reference, expected), (optimizer, net)):
        loss_of(model, 0).backward()
        each.step()
    assert same(net, expected)
    assert not optimizer.state


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_parameter_that_joins_later_starts_anew(kind: str) -> None:
    net = network()
    optimizer = ours(kind, net)
    first, *others = net.parameters()
    first.grad = torch.ones_like(first)
    optimizer.step()
    before = [parameter.detach().clone() for parameter in others]
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert len(optimizer.state) == 3
    assert all(not torch.equal(parameter, old) for parameter, old in zip(others, before, strict=True))


def test_what_prepares_a_gradient_sees_each_parameter_once() -> None:
    net, seen = network(), []
    with ours("sgd", net).inside_backward(seen.append):
        loss_of(net, 0).backward()
    assert sorted(map(id, seen)) == sorted(map(id, net.parameters()))
    loss_of(net, 0).backward()
    assert len(seen) == 3, "after the block nothing is called any more"


def test_watchers_hear_of_every_step() -> None:
    net, steps = network(), []
    watcher: Callable[[], None] = lambda: steps.append(1)  # noqa: E731
    watchers.append(watcher)
    try:
        ours("sgd", net).step()
    finally:
        watchers.remove(watcher)
    assert len(steps) == 1


def test_moments_go_with_the_optimiser() -> None:
    """A cycle would keep them, as large as the network, until the next collection of garbage."""
    import gc
    import weakref

    net = network()
    optimizer = ours("sgd", net)
    with optimizer.inside_backward():
        loss_of(net, 0).backward()
    gc.disable()
    try:
        moment = weakref.ref(next(iter(optimizer.state.values()))["momentum_buffer"])
        del optimizer
        assert moment() is None
    finally:
        gc.enable()


def test_training_imports_no_compiler() -> None:
    code = (
        "import sys; from unisono.testing.tiny import TinyFederation; TinyFederation('simclr').run(until=1); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
