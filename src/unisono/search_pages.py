"""Pages with thumbnails of what a search found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from unisono.core.errors import left_out
from unisono.report.blocks import Block, Document, Section, columns, document, prose, section
from unisono.report.thumbnails import sprite
from unisono.sample_set import THUMBNAIL, SampleSet
from unisono.search import Duplicates, Neighbors, Outliers, Problems

SPRITE = "found"
MOST_QUERIES = 50
MOST_NEIGHBORS = 24
MOST_PAIRS = 60
MOST_OUTLIERS = 120
OUTLIERS_PER_ROW = 10
NUM_BINS = 20


class Thumbnails:
    """Thumbnails of one page: every sample is drawn once, in the order in which blocks ask for it."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}
        self._sets: dict[int, SampleSet] = {}

    def place(self, samples: SampleSet, row: int) -> int:
        """Return the number of a thumbnail."""
        self._sets[id(samples)] = samples
        return self._places.setdefault((id(samples), row), len(self._places))

    def assets(self) -> dict[str, Any]:
        """Return the picture that blocks refer to."""
        if not self._places:
            return {}
        images = [self._sets[samples].thumbnails([row]) for samples, row in self._places]
        largest = max(images, key=lambda image: image[0].numel())
        if largest.ndim == 4:
            size = largest.shape[-2:]
            images = [image if image.shape == largest.shape else _fitted(image, size) for image in images]
        return {SPRITE: sprite(torch.cat(images), THUMBNAIL)}


def neighbors_page(found: Neighbors, run: str) -> Document:
    """Return a page with a row per query.

    Args:
        found: what is shown.
        run: name of the run.
    """
    pictures = Thumbnails()
    rows = []
    for number, (members, cosines) in enumerate(zip(found.rows.tolist(), found.similarity.tolist(), strict=True)):
        if number == MOST_QUERIES:
            break
        shown = members[:MOST_NEIGHBORS]
        rows.append(
            {
                "name": _short(found.queries.names[number]),
                "detail": f"cosine {cosines[0]:.3f} to {cosines[len(shown) - 1]:.3f}",
                "query": pictures.place(found.queries, number),
                "members": [pictures.place(found.among, row) for row in shown],
                "titles": [
                    f"{found.among.names[row]}, cosine {cosine:.4f}" for row, cosine in zip(shown, cosines, strict=False)
                ],
            }
        )
    left = len(found.queries) - len(rows)
    note = "The most similar come first. Hover over an image for its file and cosine."
    note += f" {left:,} more queries are in the table beside this page." if left else ""
    return document(
        "Nearest images",
        f"{counted_queries(found)} among {len(found.among):,} images, by the features of {run}.",
        [section("neighbors", "Neighbours", [_sheet("", rows, note), _said(found.how), _unreadable(found.problems)])],
        assets=pictures.assets(),
    )


def counted_queries(found: Neighbors) -> str:
    """Return the number of queries with its word."""
    return f"{len(found.queries):,} {'query' if len(found.queries) == 1 else 'queries'}"


def duplicates_page(found: Duplicates, run: str) -> Document:
    """Return a page with equal pairs, close pairs across folders and close pairs within one.

    Args:
        found: what is shown.
        run: name of the run.
    """
    pictures, folders = Thumbnails(), found.samples.folders
    near = list(zip(found.near.first.tolist(), found.near.second.tolist(), found.near.similarity.tolist(), strict=True))
    across = [pair for pair in near if folders[pair[0]] != folders[pair[1]]]
    within = [pair for pair in near if folders[pair[0]] == folders[pair[1]]]
    nothing = None if found.exact or near else prose("No two images are equal, and no two are near duplicates.")
    parts: list[Section] = [
        section("none", "Nothing found", [nothing]),
        _pairs("exact", "Equal files", [(first, second, 1.0) for first, second in found.exact], found, pictures),
        _pairs("across", "Near duplicates across folders", across, found, pictures),
        _pairs("within", "Near duplicates within a folder", within, found, pictures),
        section(
            "threshold",
            "Threshold",
            [prose(threshold_sentence(found)), _histogram(found), _said(found.how), _unreadable(found.problems)],
        ),
    ]
    return document(
        "Duplicates",
        f"{len(found.samples):,} images, by their bytes and by the features of {run}.",
        parts,
        tiles=[
            (f"{len(found.exact):,}", "equal pairs"),
            (f"{len(across):,}", "near, across folders"),
            (f"{len(within):,}", "near, within a folder"),
            (f"{found.threshold:.4f}", "least cosine"),
        ],
        assets=pictures.assets(),
    )


def outliers_page(found: Outliers, run: str) -> Document:
    """Return a page with the samples that are farthest from all others.

    Args:
        found: what is shown.
        run: name of the run.
    """
    pictures, samples, rows = Thumbnails(), found.samples, []
    order = found.order.tolist()[:MOST_OUTLIERS]
    for start in range(0, len(order), OUTLIERS_PER_ROW):
        part = order[start : start + OUTLIERS_PER_ROW]
        distances = [float(found.distance[row]) for row in part]
        rows.append(
            {
                "name": f"{start + 1} to {start + len(part)}",
                "detail": f"distance {distances[0]:.3f} to {distances[-1]:.3f}",
                "members": [pictures.place(samples, row) for row in part],
                "titles": [f"{samples.names[row]}, distance {far:.4f}" for row, far in zip(part, distances, strict=True)],
            }
        )
    note = f"Mean cosine distance to the {found.num_neighbors} nearest; the farthest come first. Hover for the file."
    histogram = _bins("Distances of all images", "mean cosine distance", found.distance.tolist())
    return document(
        "Outliers",
        f"{len(samples):,} images, by the features of {run}.",
        [
            section(
                "outliers",
                "Farthest images",
                [_sheet("", rows, note), histogram, _said(found.how), _unreadable(found.problems)],
            )
        ],
        assets=pictures.assets(),
    )


def threshold_sentence(found: Duplicates) -> str:
    """Return the threshold and its origin."""
    if not found.chosen:
        return f"Near duplicates have a cosine of at least {found.threshold:.4f}, as asked."
    return (
        f"Near duplicates have a cosine of at least {found.threshold:.4f}: by the distances of all images to their nearest "
        "one, less than one pair as close as this is expected by chance."
    )


def _pairs(id: str, title: str, pairs: Sequence[tuple[int, int, float]], found: Duplicates, pictures: Thumbnails) -> Section:
    names = found.samples.names
    rows = [
        {
            "name": f"{_short(names[first])}, {_short(names[second])}",
            "detail": "equal" if id == "exact" else f"cosine {similarity:.4f}",
            "members": [pictures.place(found.samples, row) for row in (first, second)],
            "titles": [names[first], names[second]],
        }
        for first, second, similarity in pairs[:MOST_PAIRS]
    ]
    left = len(pairs) - len(rows)
    note = f"{left:,} more are in the table beside this page." if left else ""
    return section(id, title, [_sheet("", rows, note) if rows else None])


def _histogram(found: Duplicates) -> Block | None:
    return _bins("Nearest images", "cosine to the nearest other image", found.nearest.tolist())


def _bins(title: str, label: str, values: Sequence[float]) -> Block | None:
    """Return the number of values in each of a few ranges."""
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    if high <= low:
        return None
    counts = torch.tensor(values).histc(NUM_BINS, low, high).int().tolist()
    edges = [low + (high - low) * number / NUM_BINS for number in range(NUM_BINS)]
    return columns(title, label, "images", [f"{edge:.4g}" for edge in edges], ["images"], [[count] for count in counts])


def _sheet(title: str, rows: list[dict[str, Any]], note: str) -> Block:
    return {"kind": "sheet", "title": title, "note": note, "wide": True, "sprite": SPRITE, "rows": rows}


def _said(sentence: str) -> Block | None:
    return prose(sentence) if sentence else None


def _unreadable(problems: Problems) -> Block | None:
    if not problems:
        return None
    return prose(f"{left_out(len(problems))}; unreadable.txt lists them.", tone="warning")


def _short(name: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(Path(name).parts[-2:])


def _fitted(image: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return torch.nn.functional.interpolate(image.float(), size=list(size), mode="nearest").to(image.dtype)
