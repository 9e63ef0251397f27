"""Linear probes of public codes, against loops written out."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from unisono.evaluation.linear import random_batches
from unisono.evaluation.published import fit_linear_adam, linear_probe_orchestra


def points(num_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (num_samples,), generator=generator)
    return (torch.eye(3)[labels] + 0.4 * torch.randn(num_samples, 3, generator=generator)).unsqueeze(1), labels


def shift(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=generator)


def test_orchestras_probe_is_the_loop_of_its_code():
    """SGD with momentum on augmented raw features, whole batches in one order, the rate a cosine over all steps."""
    (samples, labels), (test_samples, test_labels) = points(50, 0), points(400, 1)
    test_x = test_samples.flatten(1)
    options = {"epochs": 4, "batch_size": 16, "learning_rate": 0.3}
    seen: list[Tensor] = []

    def encode(x: Tensor) -> Tensor:
        seen.append(x)
        return x.flatten(1)

    found = linear_probe_orchestra(
        encode, samples, labels, test_x, test_labels, shift, torch.Generator().manual_seed(5), **options
    )
    generator = torch.Generator().manual_seed(5)
    order = torch.randperm(50, generator=generator)
    weight, bias = torch.zeros(3, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
    momentum = [torch.zeros(3, 3), torch.zeros(3)]
    for step in range(12):
        rows = order[16 * (step % 3) : 16 * (step % 3) + 16]
        x = shift(samples[rows], generator)
        torch.testing.assert_close(seen[step], x)
        gradients = torch.autograd.grad(F.cross_entropy(x.flatten(1) @ weight + bias, labels[rows]), [weight, bias])
        rate = 0.3 * 0.5 * (1 + math.cos(math.pi * step / 12))
        momentum = [0.9 * old + new for old, new in zip(momentum, gradients, strict=True)]
        weight, bias = ((p - rate * m).detach().requires_grad_() for p, m in zip((weight, bias), momentum, strict=True))
    assert len(seen) == 12, "the last two samples of an epoch are dropped"
    assert found == pytest.approx(((test_x @ weight + bias).argmax(1) == test_labels).double().mean().item())
    assert found > 0.8


def test_orchestras_probe_takes_fewer_samples_than_a_batch():
    (samples, labels), (test_samples, test_labels) = points(20, 0), points(100, 1)
    splits = (samples, labels, test_samples.flatten(1), test_labels)
    found = linear_probe_orchestra(torch.nn.Flatten(), *splits, shift, torch.Generator(), learning_rate=1.0)
    assert found > 0.7


def test_adam_takes_so_many_steps_at_a_constant_rate():
    samples, labels = points(50, 0)
    x, labels = samples.flatten(1), labels + 4
    layer = fit_linear_adam(x, labels, torch.Generator().manual_seed(3), num_steps=7, batch_size=16, learning_rate=0.01)
    weight, bias = torch.zeros(3, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias], lr=0.01)
    batches = random_batches(50, 16, torch.Generator().manual_seed(3))
    for _ in range(7):
        batch = next(batches)
        optimizer.zero_grad()
        F.cross_entropy(x[batch] @ weight + bias, labels[batch] - 4).backward()
        optimizer.step()
    torch.testing.assert_close(layer.weight, weight.detach())
    torch.testing.assert_close(layer.bias, bias.detach())
    assert layer.classes.tolist() == [4, 5, 6]
    assert layer.weight.abs().max() <= 7 * 0.01 + 1e-6, "no weight goes further than the rate in a step"
