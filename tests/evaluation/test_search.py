from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from unisono.core.errors import UserError
from unisono.evaluation import search
from unisono.evaluation.search import close_pairs, duplicate_threshold, isolation, nearest_rows


def draw(num_rows: int, dim: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(seed))


def nearest_others(features: torch.Tensor) -> torch.Tensor:
    return nearest_rows(features, features, 1, torch.arange(len(features)))[1][:, 0]


@pytest.mark.parametrize("entries", [1, 700, 2**23])
def test_blocks_give_what_one_product_gives(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    monkeypatch.setattr(search, "BLOCK_ENTRIES", entries)
    queries, among = draw(30, seed=1), draw(100)
    rows, cosines = nearest_rows(queries, among, 5)
    whole = F.cosine_similarity(queries[:, None], among[None], dim=2).sort(dim=1, descending=True)
    assert torch.equal(rows, whole.indices[:, :5])
    torch.testing.assert_close(cosines, whole.values[:, :5])

    all_pairs = F.cosine_similarity(among[:, None], among[None], dim=2)
    expected = {(i, j) for i, j in (all_pairs >= 0.5).nonzero().tolist() if i < j}
    found = close_pairs(among, 0.5)
    assert expected
    assert set(zip(found.first.tolist(), found.second.tolist(), strict=True)) == expected
    assert found.num_found == len(expected)
    assert found.similarity.tolist() == sorted(found.similarity.tolist(), reverse=True)


def test_a_negative_threshold_counts_no_pair_twice() -> None:
    assert close_pairs(draw(10), -1.0).num_found == 45


def test_the_most_similar_pairs_are_kept() -> None:
    few, many = close_pairs(draw(50), 0.0, most=3), close_pairs(draw(50), 0.0)
    assert few.similarity.tolist() == many.similarity[:3].tolist()
    assert few.num_found == many.num_found > 3


def test_a_row_that_is_left_out_is_no_answer() -> None:
    features = draw(20)
    rows, _ = nearest_rows(features, features, 50, torch.arange(20))
    assert rows.shape == (20, 19)
    assert all(own not in row for own, row in enumerate(rows.tolist()))
    assert nearest_rows(features, features, 1, torch.full((20,), -1))[0][:, 0].tolist() == list(range(20))


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_finds_planted_duplicates_and_little_else(seed: int) -> None:
    features = draw(600, 32, seed)
    copies = features[:60] + 1e-3 * draw(60, 32, seed + 100)
    both = torch.cat((features, copies))
    threshold = duplicate_threshold(nearest_others(both))
    found = close_pairs(both, threshold)
    pairs = set(zip(found.first.tolist(), found.second.tolist(), strict=True))
    planted = {(row, 600 + row) for row in range(60)}
    assert planted <= pairs
    assert len(pairs - planted) <= 3


def test_a_threshold_of_collapsed_features_is_refused() -> None:
    with pytest.raises(UserError, match="collapsed"):
        duplicate_threshold(nearest_others(torch.ones(30, 4)))


def test_a_row_far_from_all_others_is_the_most_isolated() -> None:
    features = F.normalize(draw(40) * 0.1 + torch.eye(16)[0], dim=1)
    features[7] = -torch.eye(16)[0]
    distances = isolation(features, 5)
    assert int(distances.argmax()) == 7
    others = [float(1 - features[3] @ features[row]) for row in range(40) if row != 3]
    assert float(distances[3]) == pytest.approx(sum(sorted(others)[:5]) / 5, abs=1e-6)


def test_nothing_to_search_is_refused() -> None:
    with pytest.raises(UserError, match="no samples"):
        nearest_rows(draw(0), draw(3), 1)
    with pytest.raises(UserError, match="only sample"):
        nearest_rows(draw(1), draw(1), 1, torch.tensor([0]))
