"""Search among samples by the features of a run: nearest images, duplicates, outliers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unisono.core.errors import UnreadableImagesError, UserError
from unisono.evaluation.search import ClosePairs, close_pairs, duplicate_threshold, isolation, nearest_rows
from unisono.sample_set import OnError, SampleSet

Row = Mapping[str, str | int | float]
"""A line of a table by the names of its columns."""
Embed = Callable[[Tensor], Tensor]
Problems = tuple[tuple[Path, str], ...]


@dataclass(frozen=True, eq=False)
class Embedded:
    """Samples and their features, row by row.

    Args:
        samples: those that could be read.
        features: shape (num_samples, feature_dim).
        problems: files that are left out because they cannot be read, each with the reason.
    """

    samples: SampleSet
    features: Tensor
    problems: Problems


@dataclass(frozen=True, eq=False)
class Neighbors:
    """The nearest samples of each query.

    Args:
        queries: asked about.
        among: searched.
        rows: of ``among``, the most similar first, shape (num_queries, top).
        similarity: cosines, shape (num_queries, top).
        problems: files that are left out, each with the reason.
    """

    queries: SampleSet
    among: SampleSet
    rows: Tensor
    similarity: Tensor
    problems: Problems

    def table(self) -> list[Row]:
        """Return a row per query and neighbour."""
        return [
            {"query": query, "rank": rank, "file": self.among.names[row], "similarity": similarity}
            for query, rows, similarities in zip(self.queries.names, self.rows.tolist(), self.similarity.tolist(), strict=True)
            for rank, (row, similarity) in enumerate(zip(rows, similarities, strict=True), start=1)
        ]


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Pairs of samples that are the same, or nearly.

    Args:
        samples: searched.
        exact: pairs that are equal byte by byte; of three equal files, the first with each of the others.
        near: other pairs with at least the threshold; of equal files only the first takes part.
        threshold: a cosine.
        nearest: the cosine of every sample but the repeated ones to its nearest other one, shape (num_rows,).
        chosen: whether the threshold was read off the samples.
        problems: files that are left out, each with the reason.
    """

    samples: SampleSet
    exact: list[tuple[int, int]]
    near: ClosePairs
    threshold: float
    nearest: Tensor
    chosen: bool
    problems: Problems

    def table(self) -> list[Row]:
        """Return a row per pair, equal ones first, then the most similar first."""
        pairs = [("exact", first, second, 1.0) for first, second in self.exact]
        near = (self.near.first.tolist(), self.near.second.tolist(), self.near.similarity.tolist())
        pairs += [("near", first, second, similarity) for first, second, similarity in zip(*near, strict=True)]
        names, folders = self.samples.names, self.samples.folders
        return [
            {
                "kind": kind,
                "similarity": similarity,
                "first": names[first],
                "second": names[second],
                "across": "yes" if folders[first] != folders[second] else "no",
            }
            for kind, first, second, similarity in pairs
        ]


@dataclass(frozen=True, eq=False)
class Outliers:
    """Samples by their distance from others, the farthest first.

    Args:
        samples: searched.
        order: rows, the farthest first, shape (num_samples,).
        distance: mean cosine distance of each row to its nearest others, shape (num_samples,).
        num_neighbors: how many of them.
        problems: files that are left out, each with the reason.
    """

    samples: SampleSet
    order: Tensor
    distance: Tensor
    num_neighbors: int
    problems: Problems

    def table(self) -> list[Row]:
        """Return a row per sample."""
        rows = self.order.tolist()
        return [
            {"rank": rank, "file": self.samples.names[row], "distance": float(self.distance[row])}
            for rank, row in enumerate(rows, start=1)
        ]


def embed_all(samples: SampleSet, embed: Embed, on_error: OnError) -> Embedded:
    """Return features of all samples that can be read; raise one error about all that cannot unless they are to be skipped.

    Args:
        samples: read in batches.
        embed: samples to features.
        on_error: for files that cannot be read.
    """
    if not len(samples):
        raise UserError("There are no samples; give at least one.")
    features: list[Tensor] = []
    kept: list[int] = []
    problems: list[tuple[Path, str]] = []
    for values, rows, found in samples.batches():
        problems += found
        kept += rows
        # After a problem that ends the search, the rest is read only to list its problems too.
        if rows and not (problems and on_error == "stop"):
            features.append(embed(values))
    if problems and (on_error == "stop" or not kept):
        raise UnreadableImagesError(problems, len(samples))
    return Embedded(samples.select(kept), torch.cat(features), tuple(problems))


def find_neighbors(queries: Embedded, among: Embedded, top: int) -> Neighbors:
    """Return the most similar samples of each query, which is no answer itself.

    Args:
        queries: asked about.
        among: searched.
        top: how many per query.
    """
    _at_least_one("top", top)
    if queries is among:
        own = torch.arange(len(queries.samples))
    else:
        row_of = {key: row for row, key in enumerate(among.samples.keys) if key}
        own = torch.tensor([row_of.get(key, -1) for key in queries.samples.keys])
    rows, similarity = nearest_rows(queries.features, among.features, top, own)
    problems = tuple(dict.fromkeys((*queries.problems, *among.problems)))
    return Neighbors(queries.samples, among.samples, rows, similarity, problems)


def find_duplicates(found: Embedded, threshold: float | None) -> Duplicates:
    """Return pairs that are equal byte by byte, and pairs whose cosine reaches the threshold.

    Args:
        found: samples and features.
        threshold: a cosine; None reads it off the samples.
    """
    if threshold is not None and not -1 <= threshold <= 1:
        raise UserError(f"threshold must be a cosine from -1 to 1, got {threshold:g}.")
    if len(found.samples) < 2:
        raise UserError("Duplicates need at least two samples.")
    groups = found.samples.equal_rows()
    repeated = {row for group in groups for row in group[1:]}
    rows = torch.tensor([row for row in range(len(found.samples)) if row not in repeated])
    features = found.features[rows]
    nearest = torch.empty(0)
    if len(rows) > 1:
        nearest = nearest_rows(features, features, 1, torch.arange(len(rows)))[1][:, 0]
    limit = threshold if threshold is not None else duplicate_threshold(nearest) if len(rows) > 1 else 1.0
    near = close_pairs(features, limit)
    near = ClosePairs(rows[near.first], rows[near.second], near.similarity, near.num_found)
    exact = [(group[0], row) for group in groups for row in group[1:]]
    return Duplicates(found.samples, exact, near, limit, nearest, threshold is None, found.problems)


def find_outliers(found: Embedded, num_neighbors: int) -> Outliers:
    """Return samples ranked by their mean cosine distance to their nearest others.

    Args:
        found: samples and features.
        num_neighbors: how many of the nearest count; all others where there are fewer.
    """
    _at_least_one("num_neighbors", num_neighbors)
    if len(found.samples) < 2:
        raise UserError("Outliers need at least two samples.")
    number = min(num_neighbors, len(found.samples) - 1)
    distance = isolation(found.features, number)
    return Outliers(found.samples, distance.argsort(descending=True, stable=True), distance, number, found.problems)


def columns_of(table: Sequence[Row]) -> list[str]:
    """Return the names of the columns."""
    return list(table[0]) if table else []


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name} must be at least 1, got {value}.")
