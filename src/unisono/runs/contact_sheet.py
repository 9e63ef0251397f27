"""Overview of the clusters of a run: their sizes, and contact sheets with a row of sample images per cluster."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unisono.core.client_data import as_bytes
from unisono.core.context import Context
from unisono.evaluation.clusters import cluster_sizes
from unisono.evaluation.features import assign
from unisono.runs.directory import RunDirectory
from unisono.runs.files import remove_tree, write_atomically

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES_PER_CLUSTER = 16
CLUSTERS_PER_SHEET = 20
EDGE = 48
"""Images are drawn at least this many pixels wide, by a whole factor."""
MARGIN = 2
CAPTION = 88


def save_contact_sheets(directory: RunDirectory, cluster_model: nn.Module | None, samples: Tensor, seed: int) -> None:
    """Write ``clusters/sizes.csv`` and, where samples are images, ``clusters/sheet-1.png`` and so on.

    Nothing is written where a method has no clusters.

    Args:
        directory: of the run.
        cluster_model: samples to cluster scores.
        samples: images, shape (num_samples, channels, height, width), or series, shape (num_samples, channels, length).
        seed: the run's, draws the images that are shown.
    """
    if cluster_model is None:
        return
    clusters, num_clusters = assign(cluster_model, samples)
    remove_tree(directory.clusters)
    sizes = cluster_sizes(clusters, num_clusters).tolist()
    lines = ["cluster,samples", *(f"{cluster},{size}" for cluster, size in enumerate(sizes))]
    write_atomically(directory.clusters / "sizes.csv", "\n".join([*lines, ""]).encode())
    if samples.dim() != 4:
        return
    sheets = contact_sheets(samples, clusters, num_clusters, Context(seed).rng("contact sheet"))
    for number, content in enumerate(sheets, start=1):
        write_atomically(directory.clusters / f"sheet-{number}.png", content)


def contact_sheets(samples: Tensor, clusters: Tensor, num_clusters: int, generator: torch.Generator) -> list[bytes]:
    """Return PNG files of up to 20 clusters each: number and size of a cluster, and up to 16 random members of it.

    Args:
        samples: images, shape (num_samples, channels, height, width).
        clusters: numbers below num_clusters, shape (num_samples,).
        num_clusters: how many there are; empty ones are shown as empty rows.
        generator: draws the members.
    """
    sizes = cluster_sizes(clusters, num_clusters).tolist()
    order = torch.randperm(len(samples), generator=generator)
    members = [order[clusters[order] == cluster][:IMAGES_PER_CLUSTER] for cluster in range(num_clusters)]
    sheets = []
    for first in range(0, num_clusters, CLUSTERS_PER_SHEET):
        page = range(first, min(first + CLUSTERS_PER_SHEET, num_clusters))
        sheets.append(
            _draw([(f"cluster {cluster}\n{sizes[cluster]:,} samples", as_bytes(samples[members[cluster]])) for cluster in page])
        )
    return sheets


def _draw(rows: list[tuple[str, Tensor]]) -> bytes:
    """Return a PNG file with a caption and images in every row."""
    from PIL import Image, ImageDraw

    height, width = rows[0][1].shape[-2:]
    factor = max(1, -(-EDGE // max(height, width)))
    step_x, step_y = width * factor + MARGIN, height * factor + MARGIN
    sheet = Image.new("RGB", (CAPTION + IMAGES_PER_CLUSTER * step_x + MARGIN, len(rows) * step_y + MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    for row, (caption, images) in enumerate(rows):
        top = MARGIN + row * step_y
        draw.text((2 * MARGIN, top + step_y // 2), caption, fill="black", anchor="lm")
        for column, image in enumerate(images):
            sheet.paste(_enlarged(image, factor), (CAPTION + column * step_x, top))
    content = io.BytesIO()
    sheet.save(content, format="PNG")
    return content.getvalue()


def _enlarged(image: Tensor, factor: int) -> Image:
    """Return a Pillow image of a tensor of shape (1 or 3, height, width), every pixel a square."""
    from PIL import Image

    pixels = image.expand(3, -1, -1)
    drawn = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    return drawn.resize((drawn.width * factor, drawn.height * factor), Image.Resampling.NEAREST)
