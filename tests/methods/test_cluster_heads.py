from __future__ import annotations

import math

import pytest
import torch

from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import RunInfo
from unisono.core.payload import Aggregate, Payload
from unisono.methods.cluster_heads import (
    ClusterHeadsConfig,
    cluster_loss,
    entropies,
    head_at_centroids,
    instance_loss,
    wanted_clusters,
)
from unisono.models.heads import mlp
from unisono.testing.tiny import tiny_config, tiny_method


def info(num_classes: int | None) -> RunInfo:
    return RunInfo((1, 8, 8), (0.5,), (0.25,), num_classes, 5, 3)


def test_number_of_clusters() -> None:
    assert wanted_clusters(7, info(3)) == 7
    assert wanted_clusters(None, info(3)) == 3
    with pytest.raises(UserError, match=r"method\.num_clusters is required"):
        wanted_clusters(None, info(None))
    nets = tiny_method(tiny_config("cc", {"method": {"num_clusters": 5}})).build_networks()
    assert nets["cluster_head"][-1].out_features == 5  # type: ignore[index]


def test_losses_are_means_over_pairs() -> None:
    z = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0))
    config = ClusterHeadsConfig()
    first, second = (instance_loss([pair], config) for pair in ((z[0], z[1]), (z[2], z[3])))
    torch.testing.assert_close(instance_loss([(z[0], z[1]), (z[2], z[3])], config), (first + second) / 2)
    c = z.softmax(dim=2)
    first, second = (cluster_loss([pair], config) for pair in ((c[0], c[1]), (c[2], c[3])))
    torch.testing.assert_close(cluster_loss([(c[0], c[1]), (c[2], c[3])], config), (first + second) / 2)


def test_entropies() -> None:
    uniform, collapsed = torch.full((3, 4), 0.25), torch.eye(4)[[1, 1, 1]]
    total, share = entropies(uniform, collapsed)
    assert total.item() == pytest.approx(math.log(4))
    assert share.item() == pytest.approx(0.5)


def test_collapse_is_said_when_it_begins_and_not_again() -> None:
    method = tiny_method(tiny_config("cc", {"method": {"collapse_threshold": 0.5}}))
    fine, fallen = (
        method.server_step(Payload(), Aggregate(metrics={"assignment_entropy": value}), Context(0)) for value in (0.9, 0.3)
    )
    (note,) = method.round_notes(fine, fallen)
    assert "fell to 0.30 of its maximum" in note
    assert "method.collapse_threshold = 0.5" in note
    assert method.round_notes(Payload(), fallen), "a run may begin collapsed"
    for before, after in ((fallen, fallen), (fallen, fine), (fine, fine)):
        assert method.round_notes(before, after) == ()
    assert method.server_step(fallen, Aggregate(), Context(0)) == fallen


def test_a_head_at_centroids_picks_the_nearest() -> None:
    """Its scores are -|h - c|^2 / (2 s) up to a constant per sample, s = squared_distance / sqrt(dim)."""
    generator = torch.Generator().manual_seed(3)
    centroids = torch.randn(5, 8, generator=generator) * 2 + 1
    counts = torch.tensor([10.0, 30.0, 20.0, 5.0, 35.0])
    h = centroids[torch.randint(5, (200,), generator=generator)] + 0.3 * torch.randn(200, 8, generator=generator)
    squared_distance = 8 * 0.3**2
    head = mlp([8, 8, 5], norm=None)
    head.load_state_dict(head_at_centroids(centroids, counts, squared_distance))
    expected = -torch.cdist(h, centroids).square() / (2 * squared_distance / 8**0.5)
    torch.testing.assert_close(head(h).softmax(dim=1), expected.softmax(dim=1), rtol=1e-3, atol=1e-5)


def test_a_head_at_centroids_of_points_without_spread_is_finite() -> None:
    state = head_at_centroids(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.ones(2), 0.0)
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())
