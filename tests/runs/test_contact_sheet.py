from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from unisono.runs.contact_sheet import (
    CAPTION,
    CLUSTERS_PER_SHEET,
    IMAGES_PER_CLUSTER,
    MARGIN,
    contact_sheets,
    save_contact_sheets,
)
from unisono.runs.directory import RunDirectory


def opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_row_shows_members_of_its_cluster(channels: int) -> None:
    """Images of cluster k have the value 50 k everywhere; 24 pixels are drawn twice as large."""
    clusters = torch.arange(90) % 3
    samples = (50 * clusters).to(torch.uint8)[:, None, None, None].expand(90, channels, 24, 24)
    (sheet,) = contact_sheets(samples, clusters, 4, torch.Generator().manual_seed(0))
    image = opened(sheet)
    step = 48 + MARGIN
    assert image.size == (CAPTION + IMAGES_PER_CLUSTER * step + MARGIN, 4 * step + MARGIN)
    for cluster in range(3):
        for column in range(IMAGES_PER_CLUSTER):
            corner = (CAPTION + column * step, MARGIN + cluster * step)
            assert image.getpixel(corner) == (50 * cluster,) * 3
            assert image.getpixel((corner[0] + 47, corner[1] + 47)) == (50 * cluster,) * 3
            assert image.getpixel((corner[0] + 48, corner[1] + 48)) == (255,) * 3
    assert image.getpixel((CAPTION, MARGIN + 3 * step)) == (255,) * 3, "an empty cluster is an empty row"


def test_many_clusters_go_to_several_sheets() -> None:
    samples = torch.zeros(50, 1, 60, 60, dtype=torch.uint8)
    sheets = contact_sheets(samples, torch.arange(50) % 45, 45, torch.Generator().manual_seed(0))
    heights = [opened(sheet).height for sheet in sheets]
    assert heights == [rows * 62 + MARGIN for rows in (CLUSTERS_PER_SHEET, CLUSTERS_PER_SHEET, 5)]


def test_same_seed_same_sheet() -> None:
    generator = torch.Generator().manual_seed(3)
    samples = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8, generator=generator)
    clusters = torch.zeros(60, dtype=torch.long)
    first, again, other = (contact_sheets(samples, clusters, 1, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert first == again != other


class Brightness(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(dim=1, keepdim=True)
        return torch.cat([0.5 - mean, mean - 0.5], dim=1)


def test_sheets_lie_in_the_run_directory(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    (directory.clusters).mkdir()
    (directory.clusters / "sheet-7.png").write_bytes(b"of an earlier end of the run")
    save_contact_sheets(directory, Brightness(), torch.zeros(5, 1, 8, 8, dtype=torch.uint8), seed=0)
    assert sorted(path.name for path in directory.clusters.iterdir()) == ["sheet-1.png", "sizes.csv"]
    assert (directory.clusters / "sizes.csv").read_text() == "cluster,samples\n0,5\n1,0\n"


def test_nothing_is_drawn_without_clusters_or_images(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    save_contact_sheets(directory, None, torch.zeros(5, 1, 8, 8, dtype=torch.uint8), seed=0)
    assert list(tmp_path.iterdir()) == []
    save_contact_sheets(directory, Brightness(), torch.zeros(5, 6, 100), seed=0)
    assert [path.name for path in directory.clusters.iterdir()] == ["sizes.csv"], "series have sizes and no pictures"
