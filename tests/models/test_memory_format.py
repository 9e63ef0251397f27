"""The memory format of activations: the fastest one for network, shape and precision, as benchmarks/precision.py shows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unisono.models.backbones import ModelConfig, make_backbone
from unisono.models.memory_format import ChannelsLast


@pytest.mark.parametrize(
    ("backbone", "shape", "norm", "half", "last"),
    [
        ("convnet", (3, 32, 32), "batch", True, True),
        ("convnet", (3, 32, 32), "group", True, False),
        ("convnet", (3, 32, 32), "group", False, True),
        ("convnet", (1, 28, 28), "batch", True, False),
        ("convnet", (1, 28, 28), "batch", False, True),
        ("convnet", (1, 32, 32), "batch", True, True),
        ("resnet18", (1, 28, 28), "batch", True, True),
        ("resnet18", (3, 32, 32), "group", True, False),
        ("resnet18", (3, 32, 32), "group", False, True),
    ],
)
def test_the_format_is_the_fastest(backbone: str, shape: tuple[int, ...], norm: str, half: bool, last: bool) -> None:
    net = make_backbone(ModelConfig(backbone=backbone, norm=norm, width=0.125), shape, (0.5,), (0.25,))  # type: ignore[arg-type]
    formats: list[bool] = []
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            layer.register_forward_hook(lambda *seen: formats.append(is_last(seen[2])))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        net(torch.rand(2, *shape))
    assert formats[:3] == [last] * 3


def is_last(x: torch.Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


@pytest.mark.parametrize(
    ("side", "norm", "stem", "in_full"),
    [
        (32, "group", "imagenet", False),
        (32, "batch", "imagenet", True),
        (32, "group", "3x3", True),
        (96, "group", "imagenet", True),
    ],
)
def test_group_norm_on_small_maps_keeps_the_default_format(side: int, norm: str, stem: str, in_full: bool) -> None:
    config = ModelConfig(backbone="resnet18", norm=norm, stem=stem, width=0.125)  # type: ignore[arg-type]
    net = make_backbone(config, (3, side, side), (0.5,), (0.25,))
    assert [part.in_full for part in net.modules() if isinstance(part, ChannelsLast)] == [in_full]


def test_deep_stages_gain_even_on_few_pixels() -> None:
    net = make_backbone(ModelConfig(backbone="convnet", options={"depth": 2}), (1, 28, 28), (0.5,), (0.25,))
    assert all(part.in_half for part in net.modules() if hasattr(part, "in_half"))
