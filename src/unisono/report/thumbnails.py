"""Sprites of many small images: samples as a page shows them, images as they are and series as lines."""

from __future__ import annotations

import base64
import io
import math
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from unisono.core.client_data import as_bytes
from unisono.report.palette import LIGHT

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 1_100_000
"""Most pixels of all thumbnails together, so that a page stays small."""
MOST_BYTES = 1_000_000
LARGEST_EDGE = 48
BLOCK = 8
"""JPEG works on squares of this many pixels; thumbnails that begin at one do not bleed into each other."""
SERIES_SIZE = (96, 56)
MOST_CHANNELS = 6
OUTLIERS = 0.005

Sprite = dict[str, Any]
"""``source`` (a data URL), ``columns``, ``count``, size of a thumbnail and of its cell, and whether pixels show as squares."""


def sprite(samples: Tensor, edge: int = LARGEST_EDGE) -> Sprite:
    """Return all samples as one picture, row by row.

    Args:
        samples: images, shape (num, channels, height, width), or float series, (num, channels, length).
        edge: longest side of a thumbnail; smaller where there are very many.
    """
    return _of_images(samples, edge) if samples.dim() == 4 else _of_series(samples)


def _of_images(samples: Tensor, edge: int) -> Sprite:
    from PIL import Image

    small = _shrunk(samples, edge)
    num, _, height, width = small.shape
    cell_height, cell_width = (-(-edge // BLOCK) * BLOCK for edge in (height, width))
    columns = math.ceil(math.sqrt(num))
    rows = -(-num // columns)
    cells = F.pad(small.float(), (0, cell_width - width, 0, cell_height - height), mode="replicate").to(small.dtype)
    cells = F.pad(cells, (0, 0, 0, 0, 0, 0, 0, rows * columns - num))
    sheet = cells.reshape(rows, columns, -1, cell_height, cell_width).permute(0, 3, 1, 4, 2)
    pixels = sheet.reshape(rows * cell_height, columns * cell_width, -1).squeeze(-1).contiguous().numpy()
    return {
        "source": _encoded(Image.fromarray(pixels)),
        "columns": columns,
        "count": num,
        "width": width,
        "height": height,
        "cell_width": cell_width,
        "cell_height": cell_height,
        "pixels": max(height, width) <= 32,
    }


def _shrunk(samples: Tensor, edge: int) -> Tensor:
    """Return grey or RGB images, no wider than the page has room for, uint8."""
    images = as_bytes(samples)
    edge = min(edge, int(math.sqrt(MOST_PIXELS / len(images))))
    largest = max(images.shape[-2:])
    if largest <= edge:
        return images
    size = [max(1, round(length * edge / largest)) for length in images.shape[-2:]]
    return F.interpolate(images.float(), size, mode="area").round().clamp(0, 255).to(images.dtype)


def _encoded(image: Image) -> str:
    """Return a data URL: PNG where that is small, else JPEG as fine as the limit allows."""
    content = io.BytesIO()
    image.save(content, format="PNG", optimize=False)
    if len(content.getvalue()) <= MOST_BYTES // 3 or image.mode == "P":
        return _url("png", content.getvalue())
    for quality in (88, 75, 60, 40):
        content = io.BytesIO()
        image.save(content, format="JPEG", quality=quality, subsampling=0)
        if len(content.getvalue()) <= MOST_BYTES:
            break
    return _url("jpeg", content.getvalue())


def _of_series(samples: Tensor) -> Sprite:
    """Return series drawn as lines, one colour per channel with one scale for all samples; outliers are cut."""
    from PIL import Image, ImageColor, ImageDraw

    width, height = SERIES_SIZE
    shown = F.adaptive_avg_pool1d(samples[:, :MOST_CHANNELS].float(), min(samples.shape[-1], width - 4))
    values = shown.transpose(0, 1).flatten(1).sort(dim=1).values
    low, high = (values[:, int(share * (values.shape[1] - 1))][None, :, None] for share in (OUTLIERS, 1 - OUTLIERS))
    heights = (height - 3 - ((shown - low) / (high - low).clamp_min(1e-12)).clamp(0, 1) * (height - 6)).tolist()
    steps = [2 + position * (width - 5) / max(1, shown.shape[-1] - 1) for position in range(shown.shape[-1])]
    num = len(shown)
    columns = math.ceil(math.sqrt(num))
    # Colour 0 is transparent, so that the lines stand on any background.
    image = Image.new("P", (columns * width, -(-num // columns) * height), 0)
    image.putpalette([255, 255, 255, *(part for colour in LIGHT for part in ImageColor.getrgb(colour))])
    image.info["transparency"] = 0
    draw = ImageDraw.Draw(image)
    for number, channels in enumerate(heights):
        left, top = number % columns * width, number // columns * height
        for channel, values in enumerate(channels):
            points = [(left + x, top + y) for x, y in zip(steps, values, strict=True)]
            draw.line(points if len(points) > 1 else points * 2, fill=1 + channel % len(LIGHT), width=1)
    return {
        "source": _encoded(image),
        "columns": columns,
        "count": num,
        "width": width,
        "height": height,
        "cell_width": width,
        "cell_height": height,
        "pixels": False,
    }


def _url(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
