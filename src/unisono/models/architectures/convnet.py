"""A narrow convolutional network that fits small images and two cores: every stage halves the sides of the map.

Three stages of 32, 64 and 128 channels on 28x28 images give 2,048 features, four stages of up to 256 channels on 32x32 images
1,024. Ours: no paper names it. Activations are kept in channels-last memory, as in the ResNets.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from unisono.core.config import Section, make_section
from unisono.models.backbones import ModelConfig, backbones, image_shape
from unisono.models.memory_format import fitting_format
from unisono.models.norms import NormOf

FIRST_WIDTH, LAST_WIDTH = 32, 256
MOST_FEATURES = 4096


class ConvnetOptions(Section):
    """Options of the convnet: ``model.options``."""

    widths: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (),
        max_length=16,
        description="channels of every stage; unset: 32, 64, 128, 256, 256, ..., as many stages as fit the image",
    )
    depth: int = Field(1, ge=1, le=16, description="convolutions per stage; the first has stride 2")
    pool: Literal["auto", "flatten", "mean"] = Field(
        "auto", description="how the last map becomes features; auto: flatten, but mean where that gives more than 4,096"
    )
    feature_dim: int = Field(0, ge=0, description="width of a linear layer on top; 0: none")


class Convnet(nn.Module):
    """Images to features: stages of 3x3 convolutions, each followed by a norm and a ReLU; then flattened or averaged.

    Args:
        in_channels: channels of an image.
        sides: height and width of an image.
        widths: channels of every stage.
        norm: makes the layer after every convolution.
        options: the rest.
    """

    def __init__(
        self, in_channels: int, sides: tuple[int, int], widths: tuple[int, ...], norm: NormOf, options: ConvnetOptions
    ) -> None:
        super().__init__()
        few_pixels = in_channels == 1 and max(sides) < 32 and options.depth == 1
        channels_last = fitting_format(norm(widths[0]), few_pixels)
        self.stages = nn.Sequential(channels_last)
        channels = in_channels
        for width in widths:
            stage = nn.Sequential()
            for position in range(options.depth):
                stride = 2 if position == 0 else 1
                stage.append(nn.Conv2d(channels, width, 3, stride, padding=1, bias=False))
                if len(self.stages) == 1 and position == 0:
                    # The memory format of one-channel images is ambiguous: the convolution then answers in the default one.
                    stage.append(channels_last)
                stage.append(norm(width))
                stage.append(nn.ReLU(inplace=True))
                channels = width
            self.stages.append(stage)
        height, width = (_side(side, len(widths)) for side in sides)
        flat = channels * height * width
        self.flatten = options.pool == "flatten" or (options.pool == "auto" and flat <= MOST_FEATURES)
        pooled_dim = flat if self.flatten else channels
        self.linear = nn.Linear(pooled_dim, options.feature_dim) if options.feature_dim else nn.Identity()
        self.feature_dim = options.feature_dim or pooled_dim
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def stage_names(self) -> list[tuple[str, ...]]:
        """Names of the parts of each stage, the first first; there is no first layer apart from them."""
        return [(f"stages.{number}",) for number in range(1, len(self.stages))]

    def forward(self, images: Tensor) -> Tensor:
        """Return features, shape (batch, feature_dim).

        Args:
            images: normalised, shape (batch, channels, height, width).
        """
        x = self.stages(images)
        return self.linear(torch.flatten(x, 1) if self.flatten else x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


@backbones.register("convnet")
def convnet(input_shape: tuple[int, ...], config: ModelConfig, **options: Any) -> Convnet:
    """Narrow convolutional network: 2048 features of 28x28 images, 1024 of 32x32; has model.options."""
    channels, height, width = image_shape(input_shape, config)
    chosen = make_section(ConvnetOptions, options, "model.options")
    widths = chosen.widths or fitting_widths(max(height, width))
    scaled = tuple(max(1, round(each * config.width)) for each in widths)
    return Convnet(channels, (height, width), scaled, config.norms(2), chosen)


def fitting_widths(side: int) -> tuple[int, ...]:
    """Return the channels of every stage for images of this longer side: as many stages as leave two to four pixels."""
    num_stages = max(1, side.bit_length() - 2)
    return tuple(min(FIRST_WIDTH << stage, LAST_WIDTH) for stage in range(num_stages))


def _side(size: int, num_stages: int) -> int:
    """Return the length of a side after some stages."""
    for _ in range(num_stages):
        size = (size + 1) // 2
    return size
