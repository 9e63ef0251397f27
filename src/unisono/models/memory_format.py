"""Memory format of activations: channels-last, where a CPU is faster with it (``benchmarks/precision.py``)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ChannelsLast(nn.Module):
    """Change to channels-last memory alone; on a CPU only in the precisions where that is faster.

    Args:
        in_full: whether in fp32 on a CPU.
        in_half: whether under autocast on a CPU.
    """

    def __init__(self, in_full: bool = True, in_half: bool = True) -> None:
        super().__init__()
        self.in_full, self.in_half = in_full, in_half

    def forward(self, x: Tensor) -> Tensor:
        faster = self.in_half if torch.is_autocast_enabled("cpu") else self.in_full
        return x.contiguous(memory_format=torch.channels_last) if faster or x.device.type != "cpu" else x


def fitting_format(norm: nn.Module, few_pixels: bool = False, small_maps: bool = False) -> ChannelsLast:
    """Return the change of memory format that is fastest on a CPU.

    GroupNorm has no fast kernel for bf16 in channels-last memory, nor for maps of few pixels and many channels; and a first
    convolution of one channel writes the default format anyway, so that on few pixels the change costs as much as it saves.

    Args:
        norm: a normalisation layer of the network.
        few_pixels: whether the network sees images of one channel and less than 32 pixels a side.
        small_maps: whether its first layers make the maps small and wide at once.
    """
    by_group = isinstance(norm, nn.GroupNorm)
    return ChannelsLast(in_full=not (by_group and small_maps), in_half=not (by_group or few_pixels))
