"""Search among features by cosine: nearest rows, close pairs, and a threshold that the features themselves give.

Similarities are computed in blocks, so that memory stays small for any number of rows. A search of very many pairs goes through
an index, where one can be made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.core.errors import UserError
from unisono.core.progress import tell
from unisono.evaluation.index import EXACT_PAIRS, Index, has_faiss

BLOCK_ENTRIES = 2**23
"""Similarities held at a time: 32 MB."""
MOST_QUERIES = 1024
"""Rows that are searched for at a time."""
NO_DIFFERENCE = 1e-6
"""Cosine distances below this are rounding of float32."""
ROUNDING = 1e-5
"""Two ways to the same cosine differ by less."""
MOST_PAIRS = 10_000


@dataclass(frozen=True)
class ClosePairs:
    """Pairs of rows with a cosine of at least a threshold, the most similar first.

    Args:
        first: the smaller row of each pair, shape (num_pairs,).
        second: the larger row, shape (num_pairs,).
        similarity: their cosine, shape (num_pairs,).
        num_found: how many pairs there are, also where only the most similar ones are kept.
    """

    first: Tensor
    second: Tensor
    similarity: Tensor
    num_found: int


def fitting_index(num_queries: int, among: Tensor) -> Index | None:
    """Return an index where so many queries would take an exact search too long; None where they do not, or without faiss.

    Args:
        num_queries: rows that are asked about.
        among: features to search, shape (num_rows, feature_dim).
    """
    return Index(among) if is_large(num_queries, len(among)) and has_faiss() else None


def is_large(num_queries: int, num_rows: int) -> bool:
    """Return whether an exact search takes minutes."""
    return num_queries * num_rows > EXACT_PAIRS


def nearest_rows(
    queries: Tensor, among: Tensor, top: int, left_out: Tensor | None = None, index: Index | None = None
) -> tuple[Tensor, Tensor]:
    """Return rows and cosines of the most similar features, the most similar first, both of shape (num_queries, top).

    Args:
        queries: features, shape (num_queries, feature_dim).
        among: features to search, shape (num_rows, feature_dim).
        top: how many rows per query; fewer where there are fewer.
        left_out: one row per query that is no answer, such as the query itself; -1 leaves none out.
        index: of ``among``; None searches exactly.
    """
    if not len(queries) or not len(among):
        raise UserError("There are no samples to search; give at least one.")
    can_miss_one = left_out is not None and bool((left_out >= 0).any())
    num_kept = min(top, len(among) - can_miss_one)
    if num_kept < 1:
        raise UserError("There is nothing to find: the query is the only sample.")
    if index is None:
        return exact_rows(queries, among, num_kept, left_out)
    rows, cosines = index.nearest(queries, num_kept + can_miss_one)
    if left_out is not None and can_miss_one:
        # The row that is no answer goes to the end, or else the farthest one does.
        order = (rows == left_out[:, None]).byte().argsort(dim=1, stable=True)[:, :num_kept]
        rows, cosines = rows.gather(1, order), cosines.gather(1, order)
    short = (rows < 0).any(dim=1).nonzero()[:, 0]
    if len(short):  # the cells held too few
        own = None if left_out is None else left_out[short]
        rows[short], cosines[short] = exact_rows(queries[short], among, num_kept, own)
    return rows, cosines


def exact_rows(queries: Tensor, among: Tensor, top: int, left_out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return what ``nearest_rows`` does, by the products of all pairs.

    Args:
        queries: features, shape (num_queries, feature_dim).
        among: features to search, shape (num_rows, feature_dim).
        top: how many rows per query, at most as many as there are.
        left_out: as for ``nearest_rows``.
    """
    size = max(1, min(MOST_QUERIES, BLOCK_ENTRIES // len(among)))
    width = max(1, BLOCK_ENTRIES // size)
    rows, cosines = [], []
    for start in range(0, len(queries), size):
        block = F.normalize(queries[start : start + size].float(), dim=1)
        own = None if left_out is None else left_out[start : start + size]
        best_rows, best = torch.empty(len(block), 0, dtype=torch.int64), torch.empty(len(block), 0)
        for first in range(0, len(among), width):
            similar = block @ F.normalize(among[first : first + width].float(), dim=1).T
            if own is not None:
                known = ((own >= first) & (own < first + width)).nonzero()[:, 0]
                similar[known, own[known] - first] = -math.inf
            values, places = similar.topk(min(top, similar.shape[1]), dim=1)
            best_rows, best = torch.cat((best_rows, places + first), dim=1), torch.cat((best, values), dim=1)
            best, places = best.topk(min(top, best.shape[1]), dim=1)
            best_rows = best_rows.gather(1, places)
        rows.append(best_rows)
        cosines.append(best)
        tell("searching samples", min(len(queries), start + size), len(queries))
    return torch.cat(rows), torch.cat(cosines)


def close_pairs(
    features: Tensor,
    threshold: float,
    most: int = MOST_PAIRS,
    index: Index | None = None,
    nearest: Tensor | None = None,
) -> ClosePairs:
    """Return all pairs of rows with at least this cosine.

    Args:
        features: shape (num_rows, feature_dim).
        threshold: a cosine.
        most: the number of pairs to keep, the most similar ones.
        index: of the features; None compares all pairs.
        nearest: the cosine of every row to its nearest other one, by the same index; rows where it is lower have no pair.
    """
    first = second = torch.empty(0, dtype=torch.int64)
    similarity = torch.empty(0)
    num_found = 0
    parts = (
        _all_close(features, threshold) if index is None else index.close(threshold, most, _asked(features, threshold, nearest))
    )
    for new_first, new_second, cosines, number in parts:
        num_found += number
        first, second = torch.cat((first, new_first)), torch.cat((second, new_second))
        similarity = torch.cat((similarity, cosines))
        order = similarity.argsort(descending=True, stable=True)[:most]
        first, second, similarity = first[order], second[order], similarity[order]
    return ClosePairs(first, second, similarity, num_found)


def _asked(features: Tensor, threshold: float, nearest: Tensor | None) -> Tensor:
    """Return the rows that can be in a pair."""
    return torch.arange(len(features)) if nearest is None else (nearest >= threshold - ROUNDING).nonzero()[:, 0]


def _all_close(features: Tensor, threshold: float) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
    """Yield pairs with at least this cosine, block by block, from the products of all pairs."""
    features = F.normalize(features.float(), dim=1)
    size = max(1, BLOCK_ENTRIES // max(1, len(features)))
    for start in range(0, len(features), size):
        similar = features[start : start + size] @ features[start:].T
        close = (similar >= threshold).triu(diagonal=1).nonzero()
        yield close[:, 0] + start, close[:, 1] + start, similar[close[:, 0], close[:, 1]], len(close)
        tell("comparing samples", min(len(features), start + size), len(features))


def duplicate_threshold(nearest: Tensor) -> float:
    """Return the cosine from which on fewer than one pair is expected by chance, read off the nearest neighbours of all rows.

    Distances of independent points to their nearest neighbour follow a Weibull distribution. Its two numbers are fitted to the
    median and the 90th percentile, which duplicates do not move as long as they are less than half of the rows. The threshold
    is the distance below which this distribution expects one of all the rows.

    Args:
        nearest: the cosine of every row to its nearest other row, shape (num_rows,).
    """
    distances = (1 - nearest.double()).clamp_min(NO_DIFFERENCE)
    middle, far = (float(distances.quantile(share)) for share in (0.5, 0.9))
    if middle <= NO_DIFFERENCE:
        raise UserError(
            "Most samples have the same features as another, so no threshold can be read off them: the encoder has collapsed, "
            "or most samples are there twice; set a threshold to list them all the same."
        )
    if far <= middle:
        return 1 - middle / 2
    power = (math.log(math.log(10)) - math.log(math.log(2))) / (math.log(far) - math.log(middle))
    expected = -math.log1p(-1 / max(2, len(distances)))
    return 1 - max(NO_DIFFERENCE, middle * math.pow(expected / math.log(2), 1 / power))


def isolation(features: Tensor, num_neighbors: int, index: Index | None = None) -> Tensor:
    """Return the mean cosine distance of every row to its nearest other rows, shape (num_rows,).

    Args:
        features: shape (num_rows, feature_dim).
        num_neighbors: how many of the nearest rows count.
        index: of the features; None searches exactly.
    """
    _, similar = nearest_rows(features, features, num_neighbors, torch.arange(len(features)), index)
    return (1 - similar).mean(dim=1)
