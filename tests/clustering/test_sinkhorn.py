from __future__ import annotations

import pytest
import torch

from unisono.clustering.sinkhorn import sinkhorn


@pytest.mark.parametrize(("num_points", "num_clusters"), [(10, 3), (128, 8), (5, 5), (7, 1)])
def test_marginals(num_points: int, num_clusters: int) -> None:
    similarity = torch.rand(num_points, num_clusters, generator=torch.Generator().manual_seed(0)) * 2 - 1
    plan = sinkhorn(similarity, tolerance=1e-6, max_iterations=10_000)
    torch.testing.assert_close(plan.sum(1), torch.ones(num_points))
    torch.testing.assert_close(plan.sum(0), torch.full((num_clusters,), num_points / num_clusters), rtol=1e-4, atol=1e-4)


def test_against_naive_scaling_in_logarithms() -> None:
    similarity = torch.rand(6, 4, generator=torch.Generator().manual_seed(1)).double()
    log_plan = similarity / 0.1
    for _ in range(2000):
        log_plan = log_plan - log_plan.logsumexp(0, keepdim=True) + torch.tensor(6 / 4).log()
        log_plan = log_plan - log_plan.logsumexp(1, keepdim=True)
    plan = sinkhorn(similarity, regularization=0.1, tolerance=1e-9, max_iterations=10_000)
    torch.testing.assert_close(plan, log_plan.exp(), atol=1e-7, rtol=1e-5)


def test_equal_similarities_give_the_uniform_plan() -> None:
    torch.testing.assert_close(sinkhorn(torch.zeros(8, 4)), torch.full((8, 4), 0.25))


def test_extreme_similarities_stay_finite() -> None:
    similarity = torch.tensor([[1e4, -1e4], [1e4, -1e4]])
    assert bool(torch.isfinite(sinkhorn(similarity)).all())
