from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from unisono.report.thumbnails import MOST_BYTES, Sprite, sprite


def picture(found: Sprite) -> NDArray[np.uint8]:
    content = base64.b64decode(found["source"].partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(content)))


def cell(found: Sprite, number: int) -> NDArray[np.uint8]:
    row, column = divmod(number, found["columns"])
    top, left = row * found["cell_height"], column * found["cell_width"]
    return picture(found)[top : top + found["height"], left : left + found["width"]]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("num", [1, 5, 16])
def test_small_images_are_kept_as_they_are(channels: int, num: int) -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randint(0, 256, (num, channels, 9, 7), dtype=torch.uint8, generator=generator)
    found = sprite(samples)
    assert found["count"] == num
    for number in range(num):
        expected = samples[number].permute(1, 2, 0).squeeze(-1).numpy()
        np.testing.assert_array_equal(cell(found, number), expected)


def test_many_large_images_stay_below_the_limit_and_in_their_cells() -> None:
    samples = torch.randint(0, 256, (300, 3, 96, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    samples[::2] = 0
    found = sprite(samples)
    assert len(found["source"]) < 1.4 * MOST_BYTES
    assert (found["height"], found["width"]) == (48, 32)
    assert cell(found, 0).max() < 8, "a dark image beside noise stays dark"
    assert cell(found, 1).mean() > 100


def test_images_of_five_channels_show_the_first() -> None:
    samples = torch.zeros(2, 5, 8, 8, dtype=torch.uint8)
    samples[:, 0] = 9
    assert (cell(sprite(samples), 1) == 9).all()


@pytest.mark.parametrize("length", [1, 2, 500])
def test_series_are_lines_on_nothing(length: int) -> None:
    samples = torch.linspace(0, 1, length).expand(4, 2, length).clone()
    samples[1] = 0
    samples[2, 1] = 1 - samples[2, 1]
    found = sprite(samples)
    drawn = cell(found, 0)
    assert (drawn == 0).mean() > 0.8
    assert found["source"].startswith("data:image/png")
    if length == 500:
        flat, rising = (np.argwhere(cell(found, number) == 2)[:, 0] for number in (1, 0))
        assert len(set(flat.tolist())) == 1
        assert len(set(rising.tolist())) > 30
