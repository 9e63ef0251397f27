"""An index of features for searches that are too large for products of all pairs: cells of k-means, by faiss.

Features are compared by the distance of their directions. Wide ones are projected on their principal components first, which
never lengthens a distance: a close pair stays close, and candidates are compared by their whole features in the end. Only
neighbours in cells that a search does not open are missed; ``recall`` says how many. Work is cut in blocks that do not depend
on the number of threads, and each block runs in one thread, so that all machines give the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from unisono.core.context import Context
from unisono.core.progress import tell
from unisono.core.threads import threads

EXACT_PAIRS = 4 * 10**9
"""Pairs that an exact search compares within about two minutes on one core."""
MOST_WIDTH = 128
CELLS_PER_ROOT = 4
ROWS_PER_CELL, PASSES = 32, 8
OPENED = 32
"""Cells that a search opens."""
CANDIDATES = 4
"""Candidates per neighbour that are compared by their whole features, where they were projected."""
BLOCK = 1024
ENTRIES = 2**23
"""Numbers of candidates that are compared at a time: 32 MB."""
MET = 2**19
"""Rows that a search for close pairs meets at a time; all of them may be close, which takes 75 MB."""
CHECKED = 200
"""Rows that are searched exactly too, to state the recall."""

Found = TypeVar("Found")
Floats = NDArray[np.float32]


def has_faiss() -> bool:
    """Return whether the package that makes an index is installed."""
    try:
        import faiss  # noqa: F401
    except ImportError:
        return False
    return True


class Index:
    """Cells of rows.

    Args:
        features: shape (num_rows, feature_dim); kept as they are, and read block by block.
    """

    def __init__(self, features: Tensor) -> None:
        self.features = features
        self._cells = self._build()

    def __len__(self) -> int:
        return len(self.features)

    def nearest(self, queries: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """Return rows and cosines of the most similar features, both of shape (num_queries, top); -1 where too few were met.

        Args:
            queries: features, shape (num_queries, feature_dim).
            top: how many per query.
        """
        wanted = min(len(self), top if self._projection is None else CANDIDATES * top)

        def search(start: int) -> tuple[Tensor, Tensor]:
            block = queries[start : start + BLOCK]
            _, found = self._cells.search(self._inputs(block), wanted)
            rows = torch.from_numpy(found)
            cosines = self._cosines(block, rows).masked_fill(rows < 0, -math.inf)
            best = cosines.topk(min(top, wanted), dim=1)
            return rows.gather(1, best.indices), best.values

        parts = list(self._in_blocks(search, len(queries)))
        return torch.cat([rows for rows, _ in parts]), torch.cat([cosines for _, cosines in parts])

    def close(self, threshold: float, most: int, asked: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
        """Yield, part by part, pairs with at least this cosine: smaller row, larger row, cosine, and how many there are.

        Args:
            threshold: a cosine.
            most: pairs of a part that are kept, the most similar ones; thousands of blank images make millions of pairs.
            asked: sorted rows that may be the smaller one of a pair.
        """
        radius = 2 * (1 - threshold) + 1e-5

        def search(start: int) -> list[tuple[Tensor, Tensor, Tensor, int]]:
            rows = asked[start : start + BLOCK]
            inputs = self._inputs(self.features[rows])
            ends = self._parts(inputs)
            return [part(rows[begin:end], inputs[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]

        def part(rows: Tensor, inputs: Floats) -> tuple[Tensor, Tensor, Tensor, int]:
            block = self.features[rows]
            limits, _, found = self._cells.range_search(inputs, radius)
            first = torch.arange(len(block)).repeat_interleave(torch.from_numpy(np.diff(limits.astype(np.int64))))
            second = torch.from_numpy(found)
            later = second > rows[first]
            first, second = first[later], second[later]
            cosines = torch.cat(
                [
                    (_directions(block[some]) * _directions(self.features[others])).sum(dim=1)
                    for some, others in zip(first.split(1 << 14), second.split(1 << 14), strict=True)
                ]
                or [torch.empty(0)]
            )
            kept = cosines >= threshold
            first, second, cosines = rows[first[kept]], second[kept], cosines[kept]
            order = torch.argsort(first * len(self) + second)
            order = order[cosines[order].argsort(descending=True, stable=True)[:most]]
            return first[order], second[order], cosines[order], len(cosines)

        for parts in self._in_blocks(search, len(asked)):
            yield from parts

    @cached_property
    def recall(self) -> float:
        """The share of the ten nearest rows of some rows that the index finds."""
        from unisono.evaluation.search import exact_rows

        rows = torch.randperm(len(self), generator=Context(0).rng("index-recall"))[:CHECKED]
        queries, top = self.features[rows], min(10, len(self))
        found, _ = self.nearest(queries, top)
        true, _ = exact_rows(queries, self.features, top)
        return float((found[:, :, None] == true[:, None, :]).any(dim=1).double().mean())

    @cached_property
    def _projection(self) -> tuple[Tensor, Tensor] | None:
        """The mean of directions and their principal components; None for narrow features."""
        width = self.features.shape[1]
        if width <= MOST_WIDTH:
            return None
        rows = torch.randperm(len(self), generator=Context(0).rng("index-projection"))[: 20 * width].sort().values
        some = _directions(self.features[rows])
        mean = some.mean(dim=0)
        _, vectors = torch.linalg.eigh((some - mean).T @ (some - mean))
        return mean, vectors[:, -MOST_WIDTH:].contiguous()

    def _parts(self, inputs: Floats) -> list[int]:
        """Return where parts of a block end, each of which meets so few rows that all of them could be pairs."""
        _, cells = self._cells.quantizer.search(inputs, self._cells.nprobe)
        met = self._sizes[cells].sum(axis=1).cumsum()
        before, ends = 0, list[int]()
        while not ends or ends[-1] < len(inputs):
            ends.append(max(int(np.searchsorted(met, before + MET, side="right")), ends[-1] + 1 if ends else 1))
            before = int(met[ends[-1] - 1])
        return ends

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        """Rows of every cell."""
        lists = self._cells.invlists
        return np.array([lists.list_size(cell) for cell in range(self._cells.nlist)])

    def _inputs(self, features: Tensor) -> Floats:
        directions = _directions(features)
        if self._projection is not None:
            mean, components = self._projection
            directions = (directions - mean) @ components
        return np.ascontiguousarray(directions.numpy())

    def _cosines(self, queries: Tensor, rows: Tensor) -> Tensor:
        size = max(1, ENTRIES // (rows.shape[1] * queries.shape[1]))
        parts = [
            (_directions(self.features[some.clamp_min(0)]) * _directions(query)[:, None]).sum(dim=2)
            for query, some in zip(queries.split(size), rows.split(size), strict=True)
        ]
        return torch.cat(parts)

    def _build(self) -> Any:
        import faiss

        number = max(1, min(len(self) // ROWS_PER_CELL, CELLS_PER_ROOT * math.isqrt(len(self))))
        with _one_thread():
            rows = torch.randperm(len(self), generator=Context(0).rng("index-cells"))[: number * ROWS_PER_CELL].sort().values
            trained_on = self._inputs(self.features[rows])
            width = trained_on.shape[1]
            centres = faiss.IndexFlatL2(width)
            cells = faiss.IndexIVFFlat(centres, width, number, faiss.METRIC_L2)
            cells.cp.niter, cells.cp.min_points_per_centroid, cells.cp.seed = PASSES, 1, 1
            cells.train(trained_on)
        cells.nprobe = min(OPENED, number)
        parts = self._in_blocks(lambda start: self._assigned(centres, start), len(self), "indexing samples")
        for start, (values, places) in zip(range(0, len(self), BLOCK), parts, strict=True):
            ids = np.arange(start, start + len(values))
            cells.add_core(len(values), *(faiss.swig_ptr(array) for array in (values, ids, places)))
        return cells

    def _assigned(self, centres: Any, start: int) -> tuple[Floats, NDArray[np.int64]]:
        values = self._inputs(self.features[start : start + BLOCK])
        return values, np.ascontiguousarray(centres.search(values, 1)[1][:, 0])

    def _in_blocks(self, work: Callable[[int], Found], number: int, what: str = "searching samples") -> Iterator[Found]:
        """Yield the results of all blocks in order; a few are at work or waiting at a time."""
        import faiss

        num_threads, starts, done = torch.get_num_threads(), iter(range(0, number, BLOCK)), 0
        # OpenMP counts per calling thread, so that each of the pool has to cap itself.
        pool = ThreadPoolExecutor(num_threads, initializer=faiss.omp_set_num_threads, initargs=(1,))
        with _one_thread(), pool:
            waiting = [pool.submit(work, start) for start in islice(starts, 2 * num_threads)]
            while waiting:
                found = waiting.pop(0).result()
                waiting += [pool.submit(work, start) for start in islice(starts, 1)]
                done = min(number, done + BLOCK)
                tell(what, done, number)
                yield found


@contextmanager
def _one_thread() -> Iterator[None]:
    """Cap faiss and torch inside the block, and give torch its threads back afterwards."""
    from threadpoolctl import threadpool_limits

    with threads(1), threadpool_limits(1):
        yield


def _directions(features: Tensor) -> Tensor:
    return F.normalize(features.float(), dim=-1)
