"""ResNet-18, -34 and -50 for images of any size.

He, Zhang, Ren, Sun: Deep residual learning for image recognition (CVPR 2016). The classifier is left out. Two stems:
``imagenet`` (7x7 stride 2, then 3x3 max-pooling) and ``3x3`` (one 3x3 convolution, no max-pooling), with which the
federated papers train on 32x32 images ("replacing the kernel of the first convolutional layer with a 3x64x3x3 kernel and
removing the max-pooling"). As everywhere today, a bottleneck strides in its 3x3 convolution.

Activations are kept in channels-last memory, which trains a quarter-width ResNet-18 10 to 25 % faster on a CPU, but for
GroupNorm in bf16 or on small maps, which is slower in it; weights stay contiguous, so a state is copied, averaged and written
without reordering.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from unisono.models.backbones import ModelConfig, backbones, image_shape
from unisono.models.memory_format import fitting_format
from unisono.models.norms import NormOf

BASE_WIDTH = 64
SMALL = 64
"""Pixels of a side up to which the stem of ImageNet leaves maps of at most 16."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int, norm: NormOf) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, width, 3, stride)
        self.norm1 = norm(width)
        self.conv2 = _conv(width, width, 3)
        self.norm2 = norm(width)
        self.shortcut = _shortcut(in_channels, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu_(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu_(out.add_(self.shortcut(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut; the output is four times as wide as the middle."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int, norm: NormOf) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, width, 1)
        self.norm1 = norm(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.norm2 = norm(width)
        self.conv3 = _conv(width, width * self.expansion, 1)
        self.norm3 = norm(width * self.expansion)
        self.shortcut = _shortcut(in_channels, width * self.expansion, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu_(self.norm1(self.conv1(x)))
        out = F.relu_(self.norm2(self.conv2(out)))
        out = self.norm3(self.conv3(out))
        return F.relu_(out.add_(self.shortcut(x)))


class ResNet(nn.Module):
    """Images to features: stem, four stages of blocks, global average pooling.

    Args:
        image: channels, height and width of an image.
        block: the residual block.
        depths: number of blocks in each stage.
        config: width, norm and stem.
    """

    def __init__(
        self, image: tuple[int, int, int], block: type[BasicBlock | Bottleneck], depths: Sequence[int], config: ModelConfig
    ) -> None:
        super().__init__()
        width = max(1, round(BASE_WIDTH * config.width))
        small = config.stem == "3x3"
        self.conv = _conv(image[0], width, 3) if small else _conv(image[0], width, 7, stride=2)
        norm = config.norms(2)
        self.norm = norm(width)
        self.channels_last = fitting_format(self.norm, small_maps=not small and max(image) <= SMALL)
        self.pool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = nn.Sequential()
        channels = width
        for stage, depth in enumerate(depths):
            blocks = nn.Sequential()
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(block(channels, width * 2**stage, stride, norm))
                channels = width * 2**stage * block.expansion
            self.stages.append(blocks)
        self.feature_dim = channels
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def stage_names(self) -> list[tuple[str, ...]]:
        """Names of the parts of each stage, the first first: the stem, then stages of blocks."""
        return [("conv", "norm"), *((f"stages.{number}",) for number in range(len(self.stages)))]

    def forward(self, images: Tensor) -> Tensor:
        """Return features, shape (batch, feature_dim).

        Args:
            images: normalised, shape (batch, channels, height, width).
        """
        x = self.conv(self.channels_last(images))
        # The memory format of one-channel images is ambiguous, and the convolution then answers in the default one.
        x = self.norm(self.channels_last(x))
        return self.stages(self.pool(F.relu_(x))).mean(dim=(2, 3))  # type: ignore[no-any-return]


@backbones.register("resnet18")
def resnet18(input_shape: tuple[int, ...], config: ModelConfig) -> ResNet:
    """ResNet-18: 512 features at width 1."""
    return ResNet(image_shape(input_shape, config), BasicBlock, (2, 2, 2, 2), config)


@backbones.register("resnet34")
def resnet34(input_shape: tuple[int, ...], config: ModelConfig) -> ResNet:
    """ResNet-34: 512 features at width 1."""
    return ResNet(image_shape(input_shape, config), BasicBlock, (3, 4, 6, 3), config)


@backbones.register("resnet50")
def resnet50(input_shape: tuple[int, ...], config: ModelConfig) -> ResNet:
    """ResNet-50: 2048 features at width 1."""
    return ResNet(image_shape(input_shape, config), Bottleneck, (3, 4, 6, 3), config)


def _conv(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2, bias=False)


def _shortcut(in_channels: int, out_channels: int, stride: int, norm: NormOf) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    # The weight gradient of a strided 1x1 convolution of fewer channels than a vector holds (8 with AVX2, 16 with AVX-512)
    # corrupts the heap in channels-last memory (oneDNN issue 6035). To drop pixels first is the same function, and as fast.
    return nn.Sequential(nn.AvgPool2d(1, stride), _conv(in_channels, out_channels, 1), norm(out_channels))
