"""Compact convolutional transformers.

Hassani, Walton, Shah, Abuduweili, Li, Shi: Escaping the big data paradigm with compact transformers (2021). CCT-L/3x2 is a
tokenizer of two 3x3 convolutions (64 and 128 channels, each with ReLU and 3x3 max-pooling of stride 2), a learnable positional
embedding, L encoder layers of width 128 with 2 heads and MLP ratio 1, and sequence pooling. Layers follow the authors' public
code: attention reads a normalised copy, the MLP branch starts from a second LayerNorm that the shortcut passes through too.

Without the classifier, on 32x32 images: 282,433 parameters for L = 2 (published with a 10-way classifier: 0.28 M) and 480,833
for L = 4 (0.48 M); on the 64x64 images of Tiny-ImageNet 505,409, because the positional embedding has four times as many rows.

Departure: no attention dropout and no stochastic depth (0.1 each in the public code), because both would draw from torch's
global generator; views are the regulariser of contrastive training.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unisono.models.backbones import ModelConfig, backbones, image_shape

NUM_HEADS = 2
HEAD_DIM = 64
"""At width 1; the first convolution has as many channels."""


class EncoderLayer(nn.Module):
    """Self-attention, then an MLP of ratio 1, on tokens of shape (batch, num_tokens, dim)."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=False)
        self.attention_out = nn.Linear(dim, dim)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.mlp_norm(tokens + self._attend(self.attention_norm(tokens)))
        return tokens + self.mlp(tokens)  # type: ignore[no-any-return]

    def _attend(self, tokens: Tensor) -> Tensor:
        heads = self.query_key_value(tokens).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.attention_out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class CCT(nn.Module):
    """Images of one size to features, shape (batch, feature_dim).

    Args:
        in_channels: channels of an image.
        height: of an image.
        width: of an image.
        num_layers: number of encoder layers.
        width_factor: of tokens, heads and the first convolution; 1 has 128 features.
    """

    def __init__(self, in_channels: int, height: int, width: int, num_layers: int, width_factor: float = 1.0) -> None:
        super().__init__()
        head_dim = max(1, round(HEAD_DIM * width_factor))
        dim = self.feature_dim = NUM_HEADS * head_dim
        self.tokenizer = nn.Sequential(*_tokenizer_layer(in_channels, head_dim), *_tokenizer_layer(head_dim, dim))
        num_tokens = _quarter(height) * _quarter(width)
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, num_tokens, dim), std=0.2))
        self.layers = nn.Sequential(*(EncoderLayer(dim, NUM_HEADS) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(dim)
        self.importance = nn.Linear(dim, 1)
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        """Return features, shape (batch, feature_dim).

        Args:
            images: normalised, shape (batch, channels, height, width).
        """
        maps = self.tokenizer(images.contiguous(memory_format=torch.channels_last))
        tokens = self.norm(self.layers(maps.flatten(2).transpose(1, 2) + self.positions))
        weights = self.importance(tokens).softmax(dim=1)
        return (weights * tokens).sum(dim=1)  # type: ignore[no-any-return]


@backbones.register("cct-2-3x2")
def cct_2_3x2(input_shape: tuple[int, ...], config: ModelConfig) -> CCT:
    """CCT-2/3x2: 128 features at width 1."""
    return CCT(*image_shape(input_shape, config), num_layers=2, width_factor=config.width)


@backbones.register("cct-4-3x2")
def cct_4_3x2(input_shape: tuple[int, ...], config: ModelConfig) -> CCT:
    """CCT-4/3x2: 128 features at width 1."""
    return CCT(*image_shape(input_shape, config), num_layers=4, width_factor=config.width)


def _tokenizer_layer(in_channels: int, out_channels: int) -> tuple[nn.Module, ...]:
    conv = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    return conv, nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)


def _quarter(size: int) -> int:
    """Return the length of a side after two max-poolings of stride 2."""
    return ((size + 1) // 2 + 1) // 2


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight)
