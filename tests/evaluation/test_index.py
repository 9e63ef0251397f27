from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from unisono.core.progress import listening
from unisono.engines.devices import threads
from unisono.evaluation import index as index_module
from unisono.evaluation import search
from unisono.evaluation.index import Index
from unisono.evaluation.search import close_pairs, exact_rows, fitting_index, nearest_rows

pytest.importorskip("faiss")
NUM_ROWS, NUM_COPIES = 3000, 100


def clustered(dim: int) -> Tensor:
    """Return rows around centres; the last ones are nearly the same as the first ones."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(60, dim, generator=generator)
    rows = centres[torch.randint(60, (NUM_ROWS,), generator=generator)]
    rows = rows + 0.5 * torch.randn(NUM_ROWS, dim, generator=generator)
    rows[-NUM_COPIES:] = rows[:NUM_COPIES] + 1e-3 * torch.randn(NUM_COPIES, dim, generator=generator)
    return rows


@pytest.fixture(scope="module", params=[16, 300], ids=["narrow", "projected"])
def features(request: pytest.FixtureRequest) -> Tensor:
    return clustered(request.param)


def test_the_index_finds_nearly_all_neighbours_with_their_true_cosines(features: Tensor) -> None:
    index, own = Index(features), torch.arange(NUM_ROWS)
    rows, cosines = nearest_rows(features, features, 5, own, index)
    true, true_cosines = nearest_rows(features, features, 5, own)
    assert rows.shape == true.shape == (NUM_ROWS, 5)
    assert (rows != own[:, None]).all()
    assert (rows >= 0).all()
    found = (rows[:, :, None] == true[:, None, :]).any(dim=1).double().mean()
    assert found > 0.9
    assert index.recall > 0.9
    assert (cosines <= true_cosines + 1e-5).all()
    torch.testing.assert_close(cosines, torch.cosine_similarity(features[:, None], features[rows], dim=2), atol=1e-5, rtol=0)
    assert (cosines.diff(dim=1) <= 0).all()


def test_the_index_finds_the_same_close_pairs(features: Tensor) -> None:
    found, true = close_pairs(features, 0.999, index=Index(features)), close_pairs(features, 0.999)
    assert true.num_found == NUM_COPIES
    assert set(zip(found.first.tolist(), found.second.tolist(), strict=True)) == set(
        zip(true.first.tolist(), true.second.tolist(), strict=True)
    )
    torch.testing.assert_close(found.similarity, true.similarity, atol=1e-5, rtol=0)


def test_many_equal_rows_need_little_memory(features: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part meets so few rows that all of them could be pairs, and what it found is cut to the pairs that are wanted."""
    rows = features.clone()
    rows[:500] = rows[0] + 1e-4 * torch.randn(500, rows.shape[1], generator=torch.Generator().manual_seed(1))
    whole, index = close_pairs(rows, 0.999), Index(rows)
    monkeypatch.setattr(index_module, "MET", 20_000)
    most = 0
    for first, _, cosines, number in index.close(0.999, 30, torch.arange(NUM_ROWS)):
        assert len(first) <= min(30, number)
        assert (cosines.diff() <= 0).all()
        most = max(most, number)
    assert most < 20_000
    found, all_found = close_pairs(rows, 0.999, 30, index), close_pairs(rows, 0.999, index=index)
    assert found.num_found == all_found.num_found == whole.num_found > 500 * 499 // 2
    nearest = nearest_rows(rows, rows, 1, torch.arange(NUM_ROWS), index)[1][:, 0]
    assert not (nearest >= 0.999).all()
    fewer = close_pairs(rows, 0.999, index=index, nearest=nearest)  # rows without a pair are not asked about
    for name in ("first", "second", "similarity"):
        torch.testing.assert_close(getattr(fewer, name), getattr(all_found, name), atol=1e-6, rtol=0)
    assert torch.equal(found.first, all_found.first[:30])
    assert torch.equal(found.second, all_found.second[:30])
    torch.testing.assert_close(found.similarity, whole.similarity[:30], atol=1e-6, rtol=0)


def test_threads_change_nothing(features: Tensor) -> None:
    found = []
    for number in (1, 3):
        with threads(number):
            index = Index(features)
            pairs = close_pairs(features, 0.9, index=index)
            found.append((*index.nearest(features, 4), pairs.first, pairs.second, pairs.similarity))
            assert torch.get_num_threads() == number
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_many_neighbours_of_wide_features_are_compared_a_few_at_a_time(
    features: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, sizes = Index(features), []
    directions = index_module._directions
    monkeypatch.setattr(index_module, "_directions", lambda some: (sizes.append(some.numel()), directions(some))[1])
    expected = index.nearest(features[:64], 50)
    monkeypatch.setattr(index_module, "ENTRIES", 4 * 50 * features.shape[1])
    sizes.clear()
    assert all(torch.equal(*pair) for pair in zip(index.nearest(features[:64], 50), expected, strict=True))
    assert max(sizes) <= index_module.ENTRIES


def test_blocks_run_in_one_thread_each(features: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    import faiss

    seen: list[tuple[int, int]] = []
    inputs = Index._inputs

    def watched(self: Index, block: Tensor) -> object:
        seen.append((torch.get_num_threads(), faiss.omp_get_max_threads()))
        return inputs(self, block)

    monkeypatch.setattr(Index, "_inputs", watched)
    with threads(3):
        Index(features).nearest(features, 2)
    assert seen
    assert set(seen) == {(1, 1)}


def test_queries_whose_cells_hold_too_few_rows_are_searched_exactly(features: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "OPENED", 1)
    queries = features[:40]
    index = Index(features)
    assert (index.nearest(queries, 500)[0] < 0).any()
    rows, cosines = nearest_rows(queries, features, 500, index=index)
    assert (rows >= 0).all()
    assert cosines.isfinite().all()


def test_only_large_searches_get_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    features = clustered(8)
    assert fitting_index(NUM_ROWS, features) is None
    monkeypatch.setattr(search, "EXACT_PAIRS", NUM_ROWS**2 - 1)
    assert isinstance(fitting_index(NUM_ROWS, features), Index)
    assert fitting_index(10, features) is None
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert fitting_index(NUM_ROWS, features) is None


def test_progress_is_told() -> None:
    features = clustered(8)
    told: list[tuple[str, int, int]] = []
    with listening(lambda what, done, total: told.append((what, done, total))):
        Index(features).nearest(features, 1)
        exact_rows(features, features, 1)
    assert {what for what, done, total in told if done == total == NUM_ROWS} == {"indexing samples", "searching samples"}
