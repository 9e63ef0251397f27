"""BatchNorm statistics before any batch of data has been seen: those of random samples.

New layers have a mean of 0 and a variance of 1, with which random networks give every sample nearly the same direction. Where
outputs of single samples are needed and no client's batch may be looked at, statistics of smooth noise stand in.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unisono.core.method import RunInfo


@torch.no_grad()
def set_first_statistics(net: nn.Module, samples: Tensor) -> None:
    """Give every BatchNorm that has seen no batch the statistics of these samples; the others stay. Modes stay.

    Args:
        net: takes the samples.
        samples: shape (number, *input_shape), at least two.
    """
    modes = [(part, part.training) for part in net.modules()]
    unset = [part for part in net.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm) and _is_unset(part)]
    momenta = [part.momentum for part in unset]
    net.eval()
    for part in unset:
        part.train()
        part.momentum = 1.0  # the statistics of one batch, all of it
    if unset:
        net(samples)
    for part, momentum in zip(unset, momenta, strict=True):
        part.momentum = momentum
    for module, mode in modes:
        module.training = mode


def random_samples(number: int, info: RunInfo, generator: torch.Generator) -> Tensor:
    """Return smooth noise with the mean and deviation of the data's channels, shape (number, *input_shape).

    Each sample is the sum of random grids of 1, 2, 4, ... values per side, enlarged; images are cut to [0, 1].
    """
    channels, *size = info.input_shape
    mode = "bilinear" if len(size) == 2 else "linear"
    layers, cells = [], 1
    while cells <= max(size):
        grid = torch.randn(number, channels, *(min(cells, side) for side in size), generator=generator)
        layers.append(F.interpolate(grid, size=size, mode=mode))
        cells *= 2
    noise = torch.stack(layers).sum(dim=0)
    mean, std = (torch.tensor(values).view(-1, *(1 for _ in size)) for values in (info.mean, info.std))
    samples = mean + std * noise / noise.std()
    return samples.clamp(0, 1) if len(size) == 2 else samples


def _is_unset(norm: nn.modules.batchnorm._BatchNorm) -> bool:
    mean, variance = norm.running_mean, norm.running_var
    return mean is not None and variance is not None and bool((mean == 0).all() and (variance == 1).all())
