"""Losses and networks on another device than the CPU: ``meta``, which computes shapes and refuses to mix with the CPU."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from unisono.core.method import methods
from unisono.methods.local_training import Batch, LocalTraining
from unisono.testing.tiny import INPUT_SHAPE, NUM_CLASSES, tiny_config, tiny_method

LOSS_OF_THE_ROUND = {"cbafed", "cfcl", "featarc", "orchestra", "semifed"}
"""Methods whose loss reads values or what was received, so that it cannot run on tensors without values."""


@pytest.mark.parametrize("name", sorted(set(methods) - LOSS_OF_THE_ROUND))
def test_everything_stays_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = tiny_method(tiny_config(name))
    if not isinstance(method, LocalTraining):
        pytest.skip("trains no networks")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # knows no such device
    nets = method.build_networks().to("meta")
    x = torch.rand(4, *INPUT_SHAPE, device="meta")
    labels = torch.zeros(4, dtype=torch.long, device="meta") % NUM_CLASSES
    terms = method.loss(nets, Batch(x, torch.arange(4), labels), torch.Generator())
    terms["loss"].backward()
    gradients = [parameter.grad for parameter in nets.parameters() if parameter.grad is not None]
    assert gradients
    assert {tensor.device.type for tensor in (*terms.values(), *gradients)} == {"meta"}
