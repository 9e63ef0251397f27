"""Search among features: our exact blocked search and our index beside libraries, one thread each.

``python benchmarks/search.py`` measures what is installed. Libraries may come from another environment by PYTHONPATH.
``python benchmarks/search.py --duplicates --rows 1000000`` looks for planted near duplicates, with all cores of the process.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unisono.evaluation.search import exact_rows
from unisono.sample_set import gather
from unisono.search import Embedded, find_duplicates

Features = NDArray[np.float32]
Search = Callable[[Features, int], NDArray[Any]]
TOP = 10


def _exact(among: Features) -> Search:
    rows = torch.from_numpy(among)
    return lambda queries, top: exact_rows(torch.from_numpy(queries), rows, top)[0].numpy()


def _index(among: Features) -> Search:
    from unisono.evaluation.index import Index

    index = Index(torch.from_numpy(among))
    return lambda queries, top: index.nearest(torch.from_numpy(queries), top)[0].numpy()


def _faiss_flat(among: Features) -> Search:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(among.shape[1])
    index.add(among)
    return lambda queries, top: index.search(queries, top)[1]


def _faiss_hnsw(among: Features) -> Search:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexHNSWFlat(among.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
    index.add(among)
    index.hnsw.efSearch = 64
    return lambda queries, top: index.search(queries, top)[1]


def _hnswlib(among: Features) -> Search:
    import hnswlib

    index = hnswlib.Index(space="ip", dim=among.shape[1])
    index.init_index(max_elements=len(among), M=16, ef_construction=100)
    index.add_items(among, num_threads=1)
    index.set_ef(64)
    return lambda queries, top: index.knn_query(queries, top, num_threads=1)[0]


def _usearch(among: Features) -> Search:
    from usearch.index import Index

    index = Index(ndim=among.shape[1], metric="ip", connectivity=16)
    index.add(np.arange(len(among)), among, threads=1)
    return lambda queries, top: index.search(queries, top, threads=1).keys


def _sklearn(among: Features) -> Search:
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(algorithm="brute", metric="cosine").fit(among)
    return lambda queries, top: index.kneighbors(queries, top, return_distance=False)


SEARCHES: dict[str, Callable[[Features], Search]] = {
    "exact (unisono)": _exact,
    "index (unisono)": _index,
    "faiss flat": _faiss_flat,
    "scikit-learn brute": _sklearn,
    "faiss HNSW": _faiss_hnsw,
    "hnswlib": _hnswlib,
    "usearch": _usearch,
}


def make_features(num_rows: int, dim: int) -> Features:
    """Return rows of length 1 around 1,000 centres, as features of images lie."""
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((1000, dim), dtype=np.float32)
    rows = centres[draw.integers(1000, size=num_rows)] + draw.standard_normal((num_rows, dim), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def plant(rows: Features, number: int, share: float, draw: np.random.Generator) -> NDArray[Any]:
    """Make the last rows near copies of others and return which: each is its row and a random vector of this length.

    Args:
        rows: of length 1; changed in place.
        number: of copies.
        share: length of what is added.
        draw: of rows and vectors.
    """
    copied = draw.choice(len(rows) - number, number, replace=False)
    noise = draw.standard_normal((number, rows.shape[1]), dtype=np.float32)
    rows[-number:] = rows[copied] + share * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    return copied


def measure_duplicates(num_rows: int, dim: int, blank: int) -> None:
    """Print time and memory of a search for near duplicates, and how many of 1,000 planted ones were found."""
    draw = np.random.default_rng(1)
    rows = make_features(num_rows, dim)
    rows[:blank] = rows[0] + 1e-3 * draw.standard_normal((blank, dim), dtype=np.float32)
    copied = plant(rows, 1000, 0.1, draw)
    samples = gather(np.arange(num_rows, dtype=np.uint32).view(np.uint8).reshape(num_rows, 1, 1, 4), (1, 1, 4))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    found = find_duplicates(Embedded(samples, torch.from_numpy(rows), ()), None)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pairs = set(zip(found.near.first.tolist(), found.near.second.tolist(), strict=True))
    right = sum((row, num_rows - len(copied) + place) in pairs for place, row in enumerate(copied.tolist()))
    print(
        f"{num_rows:,} rows of {dim}, {num_rows * dim * 4 / 1e6:.0f} MB: {seconds:.0f} s on {torch.get_num_threads()} threads"
    )
    print(f"peak {before / 1e3:.0f} MB before and {after / 1e3:.0f} MB after the search; cosine {found.threshold:.4f} or more")
    print(f"{right} of {len(copied):,} planted pairs listed, {found.near.num_found:,} pairs found. {found.how}")


def main() -> None:
    """Print seconds to build and to search, and the share of true neighbours found, of each search."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--only", nargs="*", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--duplicates", action="store_true", help="look for near duplicates instead")
    parser.add_argument("--blank", type=int, default=0, help="rows that are nearly the same, as those of blank images")
    options = parser.parse_args()
    if options.duplicates:
        measure_duplicates(options.rows, options.dim, options.blank)
        return
    torch.set_num_threads(1)
    among = make_features(options.rows, options.dim)
    queries = among[np.random.default_rng(1).choice(len(among), options.queries, replace=False)]
    truth: NDArray[Any] | None = None
    for name in options.only:
        try:
            start = time.perf_counter()
            search = SEARCHES[name](among)
        except ImportError:
            print(f"{name:20} not installed")
            continue
        built = time.perf_counter()
        found = search(queries, TOP)
        end = time.perf_counter()
        truth = found if truth is None else truth
        right = np.mean([len(set(row) & set(true)) / TOP for row, true in zip(found, truth, strict=True)])
        print(f"{name:20} build {built - start:7.2f} s  search {end - built:7.3f} s  recall {right:.3f}", flush=True)


if __name__ == "__main__":
    main()
