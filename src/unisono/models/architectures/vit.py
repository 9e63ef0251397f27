"""Vision transformers, to start from weights of others: ViT, DINO, DINOv2.

Dosovitskiy et al.: An image is worth 16x16 words (ICLR 2021); Caron et al.: Emerging properties in self-supervised vision
transformers (ICCV 2021); Oquab et al.: DINOv2 (2023), which scales the branches (``layer_scale``). Features are the class token
after the last LayerNorm. Names of tensors are those of timm and of DINO's code. No dropout and no stochastic depth, which would
draw from torch's global generator.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from unisono.core.config import Section, make_section
from unisono.core.errors import UserError
from unisono.models.backbones import ModelConfig, backbones, image_shape


class VitOptions(Section):
    """Options of the vit: ``model.options``."""

    patch: int = Field(8, ge=1, description="edge of a patch in pixels")
    dim: int = Field(192, ge=1, description="width of tokens, and number of features")
    depth: int = Field(6, ge=1, le=64, description="number of layers")
    heads: int = Field(3, ge=1, description="attention heads; dim must be a multiple")
    hidden_dim: int = Field(0, ge=0, description="width of the MLPs; 0: four times dim")
    layer_scale: bool = Field(False, description="scale both branches of a layer by learnt numbers, as DINOv2 does")
    epsilon: float = Field(1e-6, gt=0, description="of every LayerNorm")


class Attention(nn.Module):
    """Self-attention on tokens of shape (batch, num_tokens, dim)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(tokens)))  # type: ignore[no-any-return]


class Scale(nn.Module):
    """Learnt factor for every feature."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), 1e-5))

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens * self.gamma


class Block(nn.Module):
    """Attention and an MLP, each on a normalised copy beside a shortcut."""

    def __init__(self, options: VitOptions) -> None:
        super().__init__()
        dim = options.dim
        self.norm1 = nn.LayerNorm(dim, eps=options.epsilon)
        self.attn = Attention(dim, options.heads)
        self.ls1 = Scale(dim) if options.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=options.epsilon)
        self.mlp = Mlp(dim, options.hidden_dim or 4 * dim)
        self.ls2 = Scale(dim) if options.layer_scale else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.ls1(self.attn(self.norm1(tokens)))
        return tokens + self.ls2(self.mlp(self.norm2(tokens)))  # type: ignore[no-any-return]


class Patches(nn.Module):
    """Images to tokens, one for each patch."""

    def __init__(self, in_channels: int, options: VitOptions) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, options.dim, options.patch, stride=options.patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


class Vit(nn.Module):
    """Images of one size to the class token, shape (batch, dim).

    Args:
        in_channels: channels of an image.
        height: of an image.
        width: of an image.
        options: all else.
    """

    def __init__(self, in_channels: int, height: int, width: int, options: VitOptions) -> None:
        super().__init__()
        self.grid = (height // options.patch, width // options.patch)
        if 0 in self.grid:
            raise UserError(f"model.options.patch = {options.patch} is larger than the images of {height}x{width}.")
        if options.dim % options.heads:
            raise UserError(f"model.options.dim must be a multiple of heads, got {options.dim} and {options.heads}.")
        self.feature_dim = options.dim
        self.patch_embed = Patches(in_channels, options)
        self.cls_token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, options.dim), std=0.02))
        self.pos_embed = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(1, 1 + self.grid[0] * self.grid[1], options.dim), std=0.02)
        )
        self.blocks = nn.Sequential(*(Block(options) for _ in range(options.depth)))
        self.norm = nn.LayerNorm(options.dim, eps=options.epsilon)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    @property
    def stage_names(self) -> list[tuple[str, ...]]:
        """Names of the parts of each stage, the first first: tokens, then layers."""
        first = ("patch_embed", "cls_token", "pos_embed")
        return [first, *((f"blocks.{number}",) for number in range(len(self.blocks)))]

    def forward(self, images: Tensor) -> Tensor:
        """Return features, shape (batch, dim).

        Args:
            images: normalised, shape (batch, channels, height, width).
        """
        patches = self.patch_embed(images)
        tokens = torch.cat((self.cls_token.expand(len(patches), -1, -1), patches), dim=1) + self.pos_embed
        return self.norm(self.blocks(tokens))[:, 0]  # type: ignore[no-any-return]


@backbones.register("vit")
def vit(input_shape: tuple[int, ...], config: ModelConfig, **options: Any) -> Vit:
    """Vision transformer: 192 features unless model.options says otherwise; takes weights of ViT and DINO."""
    return Vit(*image_shape(input_shape, config), make_section(VitOptions, options, "model.options"))
