"""Covariate shift: every client sees images rotated by angles of its own.

Louizos et al. 2024 (A): "we bin the [0, 2pi] range into 10 rotation bins and then assign to each client bins according to a
Dirichlet distribution with alpha = 0.1 [...] each client randomly rotates each image of their local dataset once with an angle
for each image sampled i.i.d. from the bins selected at that client. For the evaluation we consider non-rotated images."
With a label-skew partition it is the paper's joint shift.

As for labels, alpha is multiplied by the prior, 1 / num_bins: 500 images of a client then lie in 1.6 bins on average, the
paper's "one or two bins of rotations"; a concentration of 0.1 for each bin would give 5.0.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.data.dirichlet import log_gamma_draws, normalised
from unisono.data.partition import Partition


class ShiftConfig(Section):
    """The table ``[shift]``: how clients' samples differ beyond their labels."""

    kind: Literal["none", "rotation"] = Field(
        "none", description="rotation turns each image once, by an angle of its client's bins"
    )
    alpha: float = Field(0.1, gt=0, description="concentration of all of a client's bins together; 0.1 leaves one or two")
    num_bins: int = Field(10, ge=1, description="bins that a full turn is cut into")


def apply_shift(config: ShiftConfig, samples: Tensor, partition: Partition, seed: int) -> Tensor:
    """Return the training samples as their clients see them: a new tensor, or ``samples`` itself if kind is none.

    Args:
        config: the table ``[shift]``.
        samples: training samples, shape (num_samples, channels, height, width) for rotation.
        partition: who holds them.
        seed: the run's seed.
    """
    check_shift(config, tuple(samples.shape[1:]))
    return samples if config.kind == "none" else rotate(samples, rotation_angles(config, partition, seed))


def check_shift(config: ShiftConfig, input_shape: tuple[int, ...]) -> None:
    """Raise a UserError where samples of this shape cannot be shifted so."""
    if config.kind == "rotation" and len(input_shape) != 3:
        raise UserError(f"shift.kind {config.kind!r} needs images, got samples of shape {input_shape}: use 'none'.")


def rotation_angles(config: ShiftConfig, partition: Partition, seed: int) -> Tensor:
    """Return the angle of every sample in radians, from [0, 2 pi), shape (num_samples,)."""
    rng = Context(seed).numpy_rng("shift")
    angles = torch.zeros(int(partition.sizes.sum()))
    for rows in partition.indices:
        chances = normalised(log_gamma_draws(np.full(config.num_bins, config.alpha / config.num_bins), rng))
        bins = rng.choice(config.num_bins, size=len(rows), p=chances)
        angles[rows] = torch.from_numpy((bins + rng.random(len(rows))) * (2 * math.pi / config.num_bins)).float()
    return angles


def bin_counts(config: ShiftConfig, partition: Partition, seed: int) -> Tensor:
    """Return samples per client and bin of angles, shape (num_clients, num_bins)."""
    angles = rotation_angles(config, partition, seed)
    bins = (angles * (config.num_bins / (2 * math.pi))).long().clamp_max(config.num_bins - 1)
    return torch.stack([torch.bincount(bins[rows], minlength=config.num_bins) for rows in partition.indices])


def rotate(images: Tensor, angles: Tensor, chunk: int = 256) -> Tensor:
    """Return each image turned anticlockwise about its centre, bilinear, black outside; shape and type of images.

    Args:
        images: shape (num_samples, channels, height, width), whole numbers or floats.
        angles: in radians, shape (num_samples,).
        chunk: how many images are turned at once.
    """
    rotated = torch.empty_like(images)
    for start in range(0, len(images), chunk):
        rows = slice(start, start + chunk)
        turned = F.grid_sample(
            images[rows].float(), _grids(angles[rows], images.shape[2], images.shape[3]), align_corners=False
        )
        rotated[rows] = turned if images.is_floating_point() else turned.round_()
    return rotated


def _grids(angles: Tensor, height: int, width: int) -> Tensor:
    """Return the position that each output pixel reads, as ``grid_sample`` takes it, shape (batch, height, width, 2)."""
    rows = torch.arange(height, device=angles.device) - (height - 1) / 2
    columns = torch.arange(width, device=angles.device) - (width - 1) / 2
    across, down = torch.meshgrid(columns, rows, indexing="xy")
    cosine, sine = angles.cos()[:, None, None], angles.sin()[:, None, None]
    read_across = (cosine * across - sine * down) * (2 / width)
    read_down = (sine * across + cosine * down) * (2 / height)
    return torch.stack((read_across, read_down), dim=-1)
