"""The CNN of CF-CL: two convolutions with 5 and 8 kernels, linear layers of 128 and 64 units.

Embedding alignment for unsupervised federated learning via smart data exchange (CF-CL), section IV: "a 2-layer
convolutional neural networks (CNN), with the first layer having 5 kernels and the second layer 8 kernels, each of size
3x3, followed by a 2 linear layers of sizes 128 and 64".

The paper is silent on strides, padding and pooling, and counts 45,433 parameters on 28x28 images. Almost all of them are
in the first linear layer, 8 n^2 x 128 for a last map of n x n, so n = 6. Stride 2 without padding gives it (28, 13, 6):
45,666 parameters, 0.5 % more than the paper counts, which is what we build. No other choice of strides, padding, pooling
and normalisation of 3x3 kernels comes nearer unless biases are left out (45,461 without any). The exact 45,433 belongs to
kernels of size 2x2, each followed by 2x2 max-pooling (28, 27, 13, 12, 6), with a bias in the first convolution and none in
the second: we keep to the paper's words.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from unisono.core.errors import UserError
from unisono.models.backbones import ModelConfig, backbones, image_shape

MIN_SIDE = 7


class CfclCnn(nn.Module):
    """Images to 64 features; no normalisation layers, so width, norm and stem of the config have no meaning here.

    Args:
        in_channels: channels of an image.
        height: of an image.
        width: of an image.
    """

    feature_dim: ClassVar[int] = 64

    def __init__(self, in_channels: int, height: int, width: int) -> None:
        super().__init__()
        self.maps = nn.Sequential(
            nn.Conv2d(in_channels, 5, 3, stride=2), nn.ReLU(inplace=True), nn.Conv2d(5, 8, 3, stride=2), nn.ReLU(inplace=True)
        )
        flat_dim = 8 * _side(height) * _side(width)
        self.linear = nn.Sequential(nn.Linear(flat_dim, 128), nn.ReLU(inplace=True), nn.Linear(128, self.feature_dim))

    def forward(self, images: Tensor) -> Tensor:
        """Return features, shape (batch, 64).

        Args:
            images: normalised, shape (batch, channels, height, width).
        """
        return self.linear(torch.flatten(self.maps(images), 1))  # type: ignore[no-any-return]


@backbones.register("cfcl-cnn")
def cfcl_cnn(input_shape: tuple[int, ...], config: ModelConfig) -> CfclCnn:
    """The CNN of CF-CL: 64 features."""
    in_channels, height, width = image_shape(input_shape, config)
    if min(height, width) < MIN_SIDE:
        raise UserError(f"model.backbone = 'cfcl-cnn' needs images of at least 7x7, got {height}x{width}.")
    return CfclCnn(in_channels, height, width)


def _side(size: int) -> int:
    """Return the length of a side after two 3x3 convolutions of stride 2."""
    return ((size - 1) // 2 - 1) // 2
