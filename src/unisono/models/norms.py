"""BatchNorm and GroupNorm by name, with one rule for the number of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import nn

from unisono.core.errors import UserError

Norm = Literal["batch", "group"]
NormOf = Callable[[int], nn.Module]
"""Number of channels to a normalisation layer."""

MAX_GROUPS = 32
MIN_GROUP_WIDTH = 8


def make_norm(kind: Norm, channels: int, spatial_dims: int, affine: bool = True, groups: int | None = None) -> nn.Module:
    """Return a normalisation layer over ``channels``.

    Args:
        kind: ``batch`` (Ioffe & Szegedy 2015) or ``group`` (Wu & He 2018).
        channels: size of dimension 1 of the input.
        spatial_dims: how many dimensions follow: 2 for images, 1 for series, 0 for vectors.
        affine: whether the layer learns a scale and a shift.
        groups: of GroupNorm; None takes ``num_groups``.
    """
    if kind == "group":
        if groups is not None and channels % groups:
            raise UserError(f"model.groups must divide the channels of every layer, got {groups} for {channels} channels.")
        return nn.GroupNorm(groups or num_groups(channels), channels, affine=affine)
    batch_norm = nn.BatchNorm2d if spatial_dims == 2 else nn.BatchNorm1d
    return batch_norm(channels, affine=affine)


def batch_norm_learns(net: nn.Module) -> bool:
    """Return whether a layer of the net is a BatchNorm in train mode, so that the rows of a batch mix."""
    return any(part.training for part in net.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm))


def num_groups(channels: int) -> int:
    """Return the largest divisor of ``channels`` that is at most 32 and leaves at least 8 channels in a group, else 1.

    32 groups are the default of Wu & He (2018), whose Table 3 finds groups of 8 to 64 channels about as good and groups of one
    channel (InstanceNorm) clearly worse. The lower bound matters to narrow nets and to vectors, where a group of one is
    constantly zero and a group of two knows only a sign. It also matters to speed: in channels-last memory on a CPU the
    backward pass over 16 channels takes four times as long with groups of two as with groups of eight.
    """
    fitting = (groups for groups in range(1, MAX_GROUPS + 1) if channels % groups == 0)
    return max((groups for groups in fitting if channels // groups >= MIN_GROUP_WIDTH), default=1)
