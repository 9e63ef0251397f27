"""Search among samples by the features of a run: nearest images, duplicates, outliers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from unisono.core.errors import UnreadableImagesError, UserError
from unisono.core.mapped import room
from unisono.evaluation.index import CHECKED, Index
from unisono.evaluation.search import (
    ClosePairs,
    close_pairs,
    duplicate_threshold,
    fitting_index,
    is_large,
    isolation,
    nearest_rows,
)
from unisono.sample_set import OnError, SampleSet

Row = Mapping[str, str | int | float]
"""A line of a table by the names of its columns."""
Embed = Callable[[Tensor], Tensor]
Problems = tuple[tuple[Path, str], ...]


@dataclass(frozen=True, eq=False)
class Table(Sequence[Row]):
    """Rows that are made when they are read, for a table of millions needs much memory.

    Args:
        num_rows: how many there are.
        make: a row by its number.
    """

    num_rows: int
    make: Callable[[int], Row]

    def __len__(self) -> int:
        return self.num_rows

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        rows = range(self.num_rows)[place]
        return self.make(rows) if isinstance(rows, int) else [self.make(row) for row in rows]


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
        how: a sentence on the search, where it was not exact or took long.
    """

    queries: SampleSet
    among: SampleSet
    rows: Tensor
    similarity: Tensor
    problems: Problems
    how: str = ""

    def table(self) -> Table:
        """Return a row per query and neighbour."""
        rows, similarity, top = self.rows.numpy(), self.similarity.numpy(), self.rows.shape[1]

        def make(number: int) -> Row:
            query, place = divmod(number, top)
            file, cosine = self.among.names[int(rows[query, place])], float(similarity[query, place])
            return {"query": self.queries.names[query], "rank": place + 1, "file": file, "similarity": cosine}

        return Table(self.rows.numel(), make)


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
        how: a sentence on the search, where it was not exact or took long.
    """

    samples: SampleSet
    exact: list[tuple[int, int]]
    near: ClosePairs
    threshold: float
    nearest: Tensor
    chosen: bool
    problems: Problems
    how: str = ""

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
        how: a sentence on the search, where it was not exact or took long.
    """

    samples: SampleSet
    order: Tensor
    distance: Tensor
    num_neighbors: int
    problems: Problems
    how: str = ""

    def table(self) -> Table:
        """Return a row per sample."""
        order, distance = self.order.numpy(), self.distance.numpy()

        def make(number: int) -> Row:
            row = int(order[number])
            return {"rank": number + 1, "file": self.samples.names[row], "distance": float(distance[row])}

        return Table(len(order), make)


def embed_all(samples: SampleSet, embed: Embed, on_error: OnError) -> Embedded:
    """Return features of all samples that can be read; raise one error about all that cannot unless they are to be skipped.

    Args:
        samples: read in batches.
        embed: samples to features.
        on_error: for files that cannot be read.
    """
    if not len(samples) and not samples.problems:
        raise UserError("There are no samples; give at least one.")
    features: Tensor | None = None
    kept: list[int] = []
    problems = list(samples.problems)
    for values, rows, found in samples.batches():
        problems += found
        # After a problem that ends the search, the rest is read only to list its problems too.
        if rows and not (problems and on_error == "stop"):
            new = embed(values)
            features = room(len(samples), new.shape[1]) if features is None else features
            features[len(kept) : len(kept) + len(new)] = new
        kept += rows
    if features is None or (problems and on_error == "stop"):
        raise UnreadableImagesError(problems, len(samples) + len(samples.problems))
    return Embedded(samples.select(kept), features[: len(kept)], tuple(problems))


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
    index = fitting_index(len(queries.samples), among.features)
    rows, similarity = nearest_rows(queries.features, among.features, top, own, index)
    problems = tuple(dict.fromkeys((*queries.problems, *among.problems)))
    how = _how(index, len(queries.samples), len(among.samples))
    return Neighbors(queries.samples, among.samples, rows, similarity, problems, how)


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
    features = found.features[rows] if repeated else found.features
    index = fitting_index(len(rows), features)
    nearest = torch.empty(0)
    if len(rows) > 1:
        nearest = nearest_rows(features, features, 1, torch.arange(len(rows)), index)[1][:, 0]
    limit = threshold if threshold is not None else duplicate_threshold(nearest) if len(rows) > 1 else 1.0
    near = close_pairs(features, limit, index=index, nearest=nearest)
    near = ClosePairs(rows[near.first], rows[near.second], near.similarity, near.num_found)
    exact = [(group[0], row) for group in groups for row in group[1:]]
    how = _how(index, len(rows), len(rows))
    return Duplicates(found.samples, exact, near, limit, nearest, threshold is None, found.problems, how)


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
    index = fitting_index(len(found.samples), found.features)
    distance = isolation(found.features, number, index)
    order = distance.argsort(descending=True, stable=True)
    how = _how(index, len(found.samples), len(found.samples))
    return Outliers(found.samples, order, distance, number, found.problems, how)


def columns_of(table: Sequence[Row]) -> list[str]:
    """Return the names of the columns; only duplicates may have no row."""
    return list(table[0]) if table else ["kind", "similarity", "first", "second", "across"]


def _how(index: Index | None, num_queries: int, num_rows: int) -> str:
    """Return a sentence on a large search: what an index missed, or that there was none."""
    if index is not None:
        return (
            f"An index was searched; of the ten nearest of {min(CHECKED, num_rows)} samples, which were searched exactly too, "
            f"it finds {index.recall:.1%}."
        )
    if is_large(num_queries, num_rows):
        return "All pairs were compared; with an index (pip install 'unisono[search]') this takes a small part of the time."
    return ""


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name} must be at least 1, got {value}.")
