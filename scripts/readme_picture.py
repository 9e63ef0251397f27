"""Draw the picture of the README from a run of the demo: embeddings before and after, and samples of clusters.

``python scripts/readme_picture.py runs/demo-...-orchestra docs/figures/demo.png`` after ``unisono demo``.
"""

from __future__ import annotations

import argparse
import base64
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unisono.report.files import ReportFiles, Snapshot
from unisono.report.palette import LIGHT
from unisono.report.projection import project
from unisono.runs.directory import RunDirectory

ROWS, COLUMNS, CLUSTERS = 4, 9, 8
"""Rows of thumbnails, thumbnails of a cluster, and clusters: two stand on a row."""
GAP = 40
"""Pixels between two clusters on a row."""
TITLE, NAME = 17, 15
"""Sizes of letters, in points; the README shows the picture at half its size."""


def thumbnails(sprite: dict[str, int | str]) -> NDArray[np.uint8]:
    """Return the small images of a report, one for each point of its map."""
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(str(sprite["source"]).partition(",")[2]))).convert("L"))
    columns, width, height = (int(sprite[key]) for key in ("columns", "cell_width", "cell_height"))
    places = [divmod(number, columns) for number in range(int(sprite["count"]))]
    cells = [sheet[row * height :, column * width :] for row, column in places]
    return np.stack([cell[: int(sprite["height"]), : int(sprite["width"])] for cell in cells])


def typical(snapshot: Snapshot) -> Iterator[NDArray[np.int64]]:
    """Yield the samples that the method is surest of, of the largest clusters."""
    sizes = np.bincount(snapshot.clusters, minlength=snapshot.num_clusters)
    for cluster in np.argsort(-sizes, kind="stable")[:CLUSTERS]:
        members = np.flatnonzero(snapshot.clusters == cluster)
        yield members[np.argsort(-snapshot.confidence[members], kind="stable")][:COLUMNS]


def sheet(images: NDArray[np.uint8], clusters: Sequence[NDArray[np.int64]]) -> NDArray[np.uint8]:
    """Return the members of every cluster in a row, two clusters side by side."""
    edge = images.shape[-1] + 2
    found = np.full((ROWS * edge, 2 * COLUMNS * edge + GAP), 255, dtype=np.uint8)
    for number, members in enumerate(clusters):
        side, row = divmod(number, ROWS)
        for column, member in enumerate(members):
            top, left = row * edge + 1, side * (COLUMNS * edge + GAP) + column * edge + 1
            found[top : top + edge - 2, left : left + edge - 2] = images[member]
    return found


def draw(run: Path, to: Path) -> None:
    """Write the picture of a run."""
    files = ReportFiles(RunDirectory(run))
    rounds, points = files.rounds(), files.read("points") or {}
    first, last = files.load(rounds[0]), files.load(rounds[-1])
    labels, classes = np.asarray(points["labels"]), (files.read("about") or {})["classes"]
    places = project([first.features.astype(np.float64), last.features.astype(np.float64)], "tsne", 0)
    figure = plt.figure(figsize=(9.4, 5.9), dpi=100)
    figure.patch.set_facecolor("white")
    for number, (title, found) in enumerate(zip(("untrained weights", f"after {rounds[-1]} rounds"), places, strict=True)):
        axes = figure.add_axes((0.003 + 0.4 * number, 0.475, 0.392, 0.47))
        for label, name in enumerate(classes):
            chosen = found[labels == label]
            axes.scatter(chosen[:, 0], chosen[:, 1], s=14, color=LIGHT[label % len(LIGHT)], linewidths=0, label=name)
        axes.set(xticks=[], yticks=[])
        axes.set_title(title, fontsize=TITLE, pad=4)
        axes.spines[:].set_color("#cccccc")
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="center left", bbox_to_anchor=(0.79, 0.71), fontsize=NAME, frameon=False,
        handletextpad=-0.2, labelspacing=0.15, borderpad=0.0, markerscale=3,
    )  # fmt: skip
    axes = figure.add_axes((0.003, 0.0, 0.994, 0.41))
    axes.imshow(sheet(thumbnails(files.read("samples") or {}), list(typical(last))), cmap="gray", interpolation="nearest")
    axes.set_axis_off()
    axes.set_title(f"the {CLUSTERS} largest clusters, found without labels", fontsize=TITLE, pad=4)
    to.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    plt.close(figure)
    Image.open(content).convert("RGB").quantize(128).save(to, optimize=True)
    print(f"{to}: {to.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="directory of a finished run of a method with clusters")
    parser.add_argument("to", type=Path, help="the picture, .png")
    arguments = parser.parse_args()
    draw(arguments.run, arguments.to)
