"""Brightness, contrast, saturation and hue of image batches as one colour matrix and one shift per sample.

Each of the four is linear in the colours (contrast up to a shift along grey), and without clamping in between they commute:
saturation and hue keep the luma and leave grey alone. So one matrix product does all four in any order, and grey scale is
saturation 0. Two departures from the usual per-image code: values are clamped once, at the end, and hue is a rotation of the
chroma plane of YIQ by the same angle instead of a shift of HSV's hue.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)
# Rows I and Q of NTSC's YIQ; both sum to zero, so grey has no chroma.
IN_PHASE = (0.5959, -0.2746, -0.3213)
QUADRATURE = (0.2115, -0.5227, 0.3112)


def colour_matrices(gain: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """Return colour matrices, shape (batch, 3, 3).

    Args:
        gain: brightness times contrast, shape (batch,).
        saturation: 0 is grey, 1 leaves the chroma alone, shape (batch,).
        hue: angle by which the chroma turns, in radians, shape (batch,).
    """
    chroma = gain * saturation
    parts = torch.stack((gain, chroma * hue.cos(), chroma * hue.sin()), dim=1)
    return (parts @ _basis(gain.device, gain.dtype)).view(-1, 3, 3)


def recolour(x: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """Return images with changed colours, not clamped, shape of x; without three channels only brightness and contrast change.

    Args:
        x: images, shape (batch, channels, height, width).
        brightness: factor of all values, shape (batch,).
        contrast: factor of the distance from the image's mean luma, shape (batch,).
        saturation: factor of the distance from grey, shape (batch,).
        hue: angle in radians, shape (batch,).
    """
    batch, channels = x.shape[:2]
    pixels = x.reshape(batch, channels, -1)
    means, gain = pixels.mean(dim=2), brightness * contrast
    if channels != 3:
        shift = (brightness - gain) * means.mean(dim=1)
        return torch.addcmul(shift[:, None, None], pixels, gain[:, None, None]).view_as(x)
    shift = (brightness - gain) * (means @ _luma(x.device, x.dtype))
    return torch.baddbmm(shift[:, None, None], colour_matrices(gain, saturation, hue), pixels).view_as(x)


@lru_cache(maxsize=8)
def _luma(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.tensor(LUMA, device=device, dtype=dtype)


@lru_cache(maxsize=8)
def _basis(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return projection on luma, on chroma, and chroma turned by a right angle, as rows of shape (3, 9)."""
    to_yiq = torch.tensor([LUMA, IN_PHASE, QUADRATURE], dtype=torch.float64)
    turn = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    luma = torch.tensor(LUMA, dtype=torch.float64).expand(3, 3)
    chroma = torch.eye(3, dtype=torch.float64) - luma
    turned = torch.linalg.solve(to_yiq, turn @ to_yiq)
    return torch.stack((luma, chroma, turned)).flatten(1).to(device, dtype)
