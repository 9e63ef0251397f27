"""Exact search among features by cosine: nearest rows, close pairs, and a threshold that the features themselves give.

Similarities are computed in blocks, so that memory stays small for any number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.core.errors import UserError

BLOCK_ENTRIES = 2**23
"""Similarities held at a time: 32 MB."""
NO_DIFFERENCE = 1e-6
"""Cosine distances below this are rounding of float32."""
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


def nearest_rows(queries: Tensor, among: Tensor, top: int, left_out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return rows and cosines of the most similar features, the most similar first, both of shape (num_queries, top).

    Args:
        queries: features, shape (num_queries, feature_dim).
        among: features to search, shape (num_rows, feature_dim).
        top: how many rows per query; fewer where there are fewer.
        left_out: one row per query that is no answer, such as the query itself; -1 leaves none out.
    """
    if not len(queries) or not len(among):
        raise UserError("There are no samples to search; give at least one.")
    can_miss_one = left_out is not None and bool((left_out >= 0).any())
    num_kept = min(top, len(among) - can_miss_one)
    if num_kept < 1:
        raise UserError("There is nothing to find: the query is the only sample.")
    queries, among = F.normalize(queries.float(), dim=1), F.normalize(among.float(), dim=1)
    size = max(1, BLOCK_ENTRIES // len(among))
    rows, cosines = [], []
    for start in range(0, len(queries), size):
        similar = queries[start : start + size] @ among.T
        if left_out is not None:
            own = left_out[start : start + size]
            known = (own >= 0).nonzero()[:, 0]
            similar[known, own[known]] = -math.inf
        best = similar.topk(num_kept, dim=1)
        rows.append(best.indices)
        cosines.append(best.values)
    return torch.cat(rows), torch.cat(cosines)


def close_pairs(features: Tensor, threshold: float, most: int = MOST_PAIRS) -> ClosePairs:
    """Return all pairs of rows with at least this cosine.

    Args:
        features: shape (num_rows, feature_dim).
        threshold: a cosine.
        most: the number of pairs to keep, the most similar ones.
    """
    features = F.normalize(features.float(), dim=1)
    size = max(1, BLOCK_ENTRIES // max(1, len(features)))
    first = second = torch.empty(0, dtype=torch.int64)
    similarity = torch.empty(0)
    num_found = 0
    for start in range(0, len(features), size):
        similar = (features[start : start + size] @ features[start:].T).triu(diagonal=1)
        # Entries on and below the diagonal are 0; a threshold of 0 or less would count them.
        close = (similar >= threshold).triu(diagonal=1).nonzero()
        num_found += len(close)
        first = torch.cat((first, close[:, 0] + start))
        second = torch.cat((second, close[:, 1] + start))
        similarity = torch.cat((similarity, similar[close[:, 0], close[:, 1]]))
        order = similarity.argsort(descending=True, stable=True)[:most]
        first, second, similarity = first[order], second[order], similarity[order]
    return ClosePairs(first, second, similarity, num_found)


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


def isolation(features: Tensor, num_neighbors: int) -> Tensor:
    """Return the mean cosine distance of every row to its nearest other rows, shape (num_rows,).

    Args:
        features: shape (num_rows, feature_dim).
        num_neighbors: how many of the nearest rows count.
    """
    _, similar = nearest_rows(features, features, num_neighbors, torch.arange(len(features)))
    return (1 - similar).mean(dim=1)
