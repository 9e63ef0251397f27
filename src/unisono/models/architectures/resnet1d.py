"""A small ResNet for series.

Wang, Yan, Oates: Time series classification from scratch with deep neural networks: a strong baseline (IJCNN 2017). Three
residual blocks of 64, 128 and 128 channels, each with three convolutions, then global average pooling: any length will do.
Departure: kernels of 7, 5 and 3 where the paper has 8, 5 and 3, because an even kernel cannot be centred.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from unisono.core.errors import UserError
from unisono.models.backbones import ModelConfig, backbones
from unisono.models.norms import NormOf

BLOCK_WIDTHS = (64, 128, 128)
KERNEL_SIZES = (7, 5, 3)


class SeriesBlock(nn.Module):
    """Three convolutions of the same width around a shortcut."""

    def __init__(self, in_channels: int, width: int, norm: NormOf) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        channels = in_channels
        for kernel_size in KERNEL_SIZES:
            self.layers.append(_conv_and_norm(channels, width, kernel_size, norm))
            channels = width
        self.shortcut = nn.Identity() if in_channels == width else _conv_and_norm(in_channels, width, 1, norm)

    def forward(self, x: Tensor) -> Tensor:
        first, second, last = self.layers
        out = last(F.relu_(second(F.relu_(first(x)))))
        return F.relu_(out.add_(self.shortcut(x)))


class ResNet1d(nn.Module):
    """Series to features: three blocks, global average pooling.

    Args:
        in_channels: channels of a series.
        config: width and norm; the stem has no meaning here.
    """

    def __init__(self, in_channels: int, config: ModelConfig) -> None:
        super().__init__()
        self.blocks = nn.Sequential()
        channels = in_channels
        for base_width in BLOCK_WIDTHS:
            width = max(1, round(base_width * config.width))
            self.blocks.append(SeriesBlock(channels, width, config.norms(1)))
            channels = width
        self.feature_dim = channels
        for module in self.modules():
            if isinstance(module, nn.Conv1d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, series: Tensor) -> Tensor:
        """Return features, shape (batch, feature_dim).

        Args:
            series: normalised, shape (batch, channels, length).
        """
        return self.blocks(series).mean(dim=2)  # type: ignore[no-any-return]


@backbones.register("resnet1d")
def resnet1d(input_shape: tuple[int, ...], config: ModelConfig) -> ResNet1d:
    """ResNet for series: 128 features at width 1."""
    if len(input_shape) != 2:
        raise UserError(
            f"model.backbone = 'resnet1d' takes series of shape (channels, length), but samples have shape {input_shape}; "
            "images take 'resnet18'."
        )
    return ResNet1d(input_shape[0], config)


def _conv_and_norm(in_channels: int, out_channels: int, kernel_size: int, norm: NormOf) -> nn.Sequential:
    conv = nn.Conv1d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=False)
    return nn.Sequential(conv, norm(out_channels))
