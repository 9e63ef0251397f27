"""Backbones: samples to features, by name or by the path of a user's own module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor, nn

from unisono.core.config import Section
from unisono.core.errors import UserError
from unisono.core.registry import Registry, absolute_name
from unisono.models.checkpoints import described
from unisono.models.norms import Norm, NormOf, make_norm

Builder = Callable[..., nn.Module]
"""``(input_shape, config, **options)`` to a module whose output is (batch, feature_dim)."""

AUTO = "auto"
"""Value of ``model.backbone`` that a run replaces before it starts; outside of a run it means the choice for a CPU."""

backbones: Registry[Builder] = Registry("backbone", "unisono.models.architectures")


class ModelConfig(Section):
    """The encoder: table ``[model]``."""

    backbone: str = Field(
        AUTO,
        min_length=1,
        description="auto, a known name, or file.py:Class or package.module:Class of your own nn.Module; auto: convnet for "
        "images on a CPU, resnet18 for images on a GPU, resnet1d for series",
    )
    width: float = Field(1.0, gt=0, le=16, description="factor of all widths; 0.25 means a ResNet of 16, 32, 64, 128 channels")
    norm: Norm = Field("batch", description="normalisation of convnets, ResNets and heads: batch or group")
    groups: int | None = Field(
        None,
        ge=1,
        description="GroupNorm of convnets and ResNets: number of groups; unset: the most up to 32 with 8 channels each",
    )
    stem: Literal["3x3", "imagenet"] = Field("3x3", description="first layer of 2-D ResNets: 3x3, or 7x7 with max-pooling")
    normalize_input: Literal[True, False, "half"] = Field(
        True,
        description="what the encoder does to samples first: true subtracts the mean of the training samples and divides by "
        "their deviation, per channel; half takes 0.5 for both; false leaves them in [0, 1]",
    )
    input_size: int | None = Field(
        None,
        gt=0,
        description="edge of the images that the network sees: stored ones are squeezed to it, and views are cropped from the "
        "stored size to it; unset: the stored size",
    )
    pretrained: str | None = Field(
        None,
        min_length=1,
        description="start from this encoder: a finished run directory or a .safetensors file of one; a ResNet of torchvision "
        "or timm (.pth, .safetensors); a Hugging Face folder of a ViT or DINO model; backbone auto then takes its architecture",
    )
    frozen_stages: int = Field(
        0,
        ge=0,
        description="first stages that are not trained: 1 is the first layer, 2 also the first stage of a ResNet or layer of a "
        "vit, and so on",
    )
    options: dict[str, int | float | str | bool | tuple[int, ...]] = Field(
        default_factory=dict,
        description="options of the convnet: widths, depth, pool, feature_dim; or keyword arguments for your own module",
    )

    @field_validator("backbone")
    @classmethod
    def _found_from_anywhere(cls, value: str) -> str:
        return absolute_name(value)

    @field_validator("pretrained")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        found = None if value is None else Path(value).expanduser()
        return value if found is None or not found.exists() else str(found.absolute())

    def norms(self, spatial_dims: int) -> NormOf:
        """Return what makes the normalisation layers of an encoder.

        Args:
            spatial_dims: 2 for images, 1 for series.
        """
        return lambda channels: make_norm(self.norm, channels, spatial_dims, groups=self.groups)


class Backbone(nn.Module):
    """Network that normalises samples by mean and standard deviation, then gives features, shape (batch, feature_dim).

    Mean and standard deviation belong to the data, not to the model: they are no part of the state and never cross the wire.

    Args:
        trunk: normalised samples to features.
        feature_dim: width of the features.
        mean: per channel; all channels when there is one number.
        std: likewise.
        spatial_dims: how many dimensions follow the channels of a sample: 2 for images, 1 for series.
        input_size: edge that images of another size are resized to, without a crop; None takes them as they are.
        frozen_stages: first stages of the trunk that take no gradients and whose batch statistics stay.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        trunk: nn.Module,
        feature_dim: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        spatial_dims: int,
        input_size: int | None = None,
        frozen_stages: int = 0,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.trunk = trunk
        self.feature_dim = feature_dim
        per_channel = (1, -1, *[1] * spatial_dims)
        self.register_buffer("mean", torch.tensor(mean).view(per_channel), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(per_channel), persistent=False)
        self.frozen = _frozen_parts(trunk, frozen_stages)
        for name, parameter in trunk.named_parameters():
            if is_part(name, self.frozen):
                parameter.requires_grad_(False)

    def train(self, mode: bool = True) -> Backbone:
        """Set the mode; frozen stages stay in eval mode, so that their batch statistics do."""
        super().train(mode)
        for name, part in self.trunk.named_modules() if self.frozen else ():
            if is_part(name, self.frozen):
                part.training = False
        return self

    def forward(self, samples: Tensor) -> Tensor:
        """Return the features of a batch, shape (batch, feature_dim).

        Args:
            samples: floats as the data gives them: images in [0, 1], shape (batch, channels, height, width), or series, shape
                (batch, channels, length).
        """
        if self.input_size is not None and samples.shape[2:] != (self.input_size, self.input_size):
            size = (self.input_size, self.input_size)
            samples = F.interpolate(samples, size=size, mode="bilinear", antialias=True, align_corners=False)
        return self.trunk((samples - self.mean).div_(self.std))  # type: ignore[no-any-return]


def fitting_backbone(config: ModelConfig, input_shape: tuple[int, ...], on_gpu: bool) -> ModelConfig:
    """Return the table with a known backbone in place of ``auto``; the same table where it names one already.

    Args:
        config: the table.
        input_shape: shape of one sample, (channels, height, width) or (channels, length).
        on_gpu: whether clients compute on a GPU.
    """
    if config.backbone != AUTO:
        return config
    if config.pretrained is not None and len(input_shape) == 3:
        path = Path(config.pretrained).expanduser()
        side = config.input_size or max(input_shape[1:])
        foreign = not path.is_dir() or (path / "config.json").exists()
        asked = described(path, side, "stem" in config.model_fields_set) if foreign else None
        if asked is not None:
            return config.model_copy(update=asked)
    name = "resnet1d" if len(input_shape) == 2 else "resnet18" if on_gpu else "convnet"
    return config.model_copy(update={"backbone": name})


def make_backbone(
    config: ModelConfig, input_shape: tuple[int, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> Backbone:
    """Return the backbone that the config names, with weights from torch's global generator (see ``nets.build_seeded``).

    Args:
        config: name and options; ``auto`` is the choice for a CPU.
        input_shape: shape of one sample, (channels, height, width) or (channels, length).
        mean: what to subtract, per channel.
        std: what to divide by, per channel.
    """
    channels, *spatial = input_shape
    if config.normalize_input is not True:
        mean, std = ((0.5,), (0.5,)) if config.normalize_input == "half" else ((0.0,), (1.0,))
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) not in (1, channels):
            raise ValueError(f"{name} has {len(numbers)} numbers for {channels} channels")
    if min(std) <= 0:
        raise ValueError(f"std must be > 0, got {std}")
    if config.input_size is not None:
        if len(spatial) != 2:
            raise UserError(f"model.input_size = {config.input_size} is for images, but samples have shape {input_shape}.")
        input_shape = (channels, config.input_size, config.input_size)
    config = fitting_backbone(config, input_shape, on_gpu=False)
    trunk = _build(config, input_shape)
    known_dim = getattr(trunk, "feature_dim", None) if config.backbone in backbones else None
    feature_dim = known_dim if isinstance(known_dim, int) else _probe(trunk, config.backbone, input_shape)
    return Backbone(trunk, feature_dim, mean, std, len(spatial), config.input_size, config.frozen_stages)


def is_part(name: str, parts: tuple[str, ...]) -> bool:
    """Return whether a tensor or module is one of these parts of a network or lies in one."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def _frozen_parts(trunk: nn.Module, number: int) -> tuple[str, ...]:
    """Return the names of the parts of the first stages."""
    if number == 0:
        return ()
    stages: list[tuple[str, ...]] = getattr(trunk, "stage_names", [])
    if number >= len(stages):
        most = f"at most {len(stages) - 1}, so that something is trained" if stages else "0: this backbone has no stages"
        raise UserError(f"model.frozen_stages must be {most}, got {number}.")
    return tuple(name for stage in stages[:number] for name in stage)


def image_shape(input_shape: tuple[int, ...], config: ModelConfig) -> tuple[int, int, int]:
    """Return channels, height and width; raise a UserError where samples are no images."""
    if len(input_shape) != 3:
        raise UserError(
            f"model.backbone = {config.backbone!r} takes images, but samples have shape {input_shape}; "
            "series of shape (channels, length) take 'resnet1d'."
        )
    channels, height, width = input_shape
    return channels, height, width


def _build(config: ModelConfig, input_shape: tuple[int, ...]) -> nn.Module:
    """Call the builder, or the class of a user's own module, with what its signature asks for."""
    builder = backbones[config.backbone]
    if not callable(builder):
        raise UserError(f"model.backbone = {config.backbone!r} must be a class or a function, got {builder!r}.")
    offered = {"input_shape": input_shape, "config": config}
    signature = inspect.signature(builder)
    arguments = {name: value for name, value in offered.items() if name in signature.parameters} | config.options
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(f"model.options does not fit the backbone {config.backbone!r}: {error}.") from error
    trunk = builder(**arguments)
    if not isinstance(trunk, nn.Module):
        raise UserError(f"model.backbone = {config.backbone!r} must give an nn.Module, got {type(trunk).__name__}.")
    return trunk


def _probe(trunk: nn.Module, name: str, input_shape: tuple[int, ...]) -> int:
    """Return the width of the features of two blank samples, seen in eval mode so that no statistics move."""
    shape = (2, *input_shape)
    was_training = {module: module.training for module in trunk.modules()}
    trunk.eval()
    try:
        with torch.no_grad():
            features = trunk(torch.zeros(shape))
    except Exception as error:
        raise UserError(f"model.backbone = {name!r} fails on a batch of shape {shape}: {error}.") from error
    finally:
        for module, training in was_training.items():
            module.training = training
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        got = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise UserError(
            f"model.backbone = {name!r} must turn a batch of shape {shape} into features of shape (2, feature_dim), got {got}; "
            "pool and flatten its output."
        )
    return features.shape[1]
