"""Negatives of triplets: which points may be drawn, how often, and how many are of the anchor's class."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.core.config import merge
from unisono.core.errors import UserError
from unisono.data.received import DataWithReceived
from unisono.methods.cfcl import CFCL
from unisono.methods.local_training import Batch
from unisono.methods.negatives import Draws, ExchangeBatch, Negatives, draw_negatives
from unisono.testing.tiny import tiny_config, tiny_method

SAMPLES = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
DATA = DataWithReceived(SAMPLES, torch.arange(4), None, torch.device("cpu"), received=SAMPLES[10:13])
"""Four own points at positions 0 to 3, three received ones at 4 to 6."""


def rng(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(**options: Any) -> CFCL:
    method = tiny_method(tiny_config("cfcl", merge({"model": {"backbone": "cfcl-cnn"}}, {"method": options})))
    assert isinstance(method, CFCL)
    return method


def batch(data: DataWithReceived = DATA, positions: tuple[int, ...] = (0, 5, 2, 6)) -> ExchangeBatch:
    return Draws(data).kept(Batch(data.batch(torch.tensor(positions)), torch.tensor(positions), None))


def frequencies(kind: Negatives, anchor: int, num_own: int = 4, num_received: int = 3, own_share: float = 0.25) -> Tensor:
    anchors = torch.full((40_000,), anchor)
    found = draw_negatives(kind, anchors, num_own, num_received, own_share, rng())
    assert found is not None
    return torch.bincount(found[0], minlength=num_own + num_received) / len(anchors)


@pytest.mark.parametrize(
    ("kind", "anchor", "expected"),
    [
        ("received", 1, [0, 0, 0, 0, 1 / 3, 1 / 3, 1 / 3]),
        ("received", 5, [0, 0, 0, 0, 1 / 2, 0, 1 / 2]),
        ("global", 1, [1 / 12, 0, 1 / 12, 1 / 12, 1 / 4, 1 / 4, 1 / 4]),
        ("global", 5, [1 / 16, 1 / 16, 1 / 16, 1 / 16, 3 / 8, 0, 3 / 8]),
    ],
)
def test_chance_of_every_point(kind: Negatives, anchor: int, expected: list[float]) -> None:
    """Uniform among the points asked for, and never the anchor itself."""
    found = frequencies(kind, anchor)
    assert found[anchor] == 0
    assert bool(((found - torch.tensor(expected)).abs() < 0.01).all()), found


def test_where_there_is_no_other_point_the_union_gives_one() -> None:
    found = draw_negatives("received", torch.tensor([4, 0]), 4, 1, 0.25, rng())
    assert found is not None
    negatives, from_union = found
    assert from_union.tolist() == [True, False]
    assert int(negatives[0]) < 4
    assert int(negatives[1]) == 4
    own = draw_negatives("global", torch.zeros(200, dtype=torch.int64), 1, 2, 0.5, rng())
    assert own is not None
    assert set(own[0].tolist()) == {1, 2}
    assert 0.3 < float(own[1].double().mean()) < 0.7


def test_union_and_empty_buffers_leave_the_batch_to_the_loss() -> None:
    assert draw_negatives("union", torch.arange(4), 4, 3, 0.25, rng()) is None
    assert draw_negatives("received", torch.arange(4), 4, 0, 0.25, rng()) is None
    assert draw_negatives("global", torch.arange(4), 4, 0, 0.25, rng()) is None


@pytest.mark.parametrize("kind", ["received", "global"])
def test_loss_with_drawn_negatives_naively(kind: Negatives) -> None:
    method = make(negatives=kind, margin=0.7)
    nets = method.build_networks()
    drawn_from = batch()
    found = method.loss(nets, drawn_from, rng())
    generator = rng()
    views = method.views.first(drawn_from.x, generator)
    expected = draw_negatives(kind, drawn_from.positions, 4, 3, 1 / method.info.num_clients, generator)
    assert expected is not None
    assert torch.equal(drawn_from.negatives[0], expected[0])
    losses = []
    for row, negative in enumerate(expected[0].tolist()):
        point = SAMPLES[negative if negative < 4 else 10 + negative - 4][None].float() / 255
        anchor, positive, other = (
            F.normalize(nets["encoder"](x), dim=1)[0] for x in (drawn_from.x[row : row + 1], views[row : row + 1], point)
        )
        losses.append(max(0.0, float(((anchor - positive).square().sum() - (anchor - other).square().sum() + 0.7).detach())))
    assert float(found["loss"].detach()) == pytest.approx(sum(losses) / 4, rel=1e-4)
    assert float(found["active"]) == pytest.approx(sum(loss > 0 for loss in losses) / 4)
    assert float(found["union_negatives"]) == 0.0


def test_with_an_empty_buffer_received_is_union_and_says_so() -> None:
    alone = DataWithReceived(SAMPLES, torch.arange(8), None, torch.device("cpu"), received=SAMPLES[:0])
    union, received = make(), make(negatives="received")
    nets = union.build_networks()
    expected = union.loss(nets, batch(alone, (0, 5, 2, 6)), rng())
    found = received.loss(nets, batch(alone, (0, 5, 2, 6)), rng())
    assert torch.equal(found["loss"], expected["loss"])
    assert float(found["union_negatives"]) == 1.0
    assert "union_negatives" not in expected


def test_draws_are_recorded_by_row() -> None:
    draws = Draws(DATA)
    kept = draws.kept(Batch(DATA.batch(torch.tensor([1, 4])), torch.tensor([1, 4]), None))
    kept.negatives.append(torch.tensor([6, 0]))
    rows = draws.rows(torch.tensor([0, 1, 2, 3, 10, 11, 12]))
    assert {name: found.tolist() for name, found in rows.items()} == {"anchors": [1, 10], "negatives": [12, 0]}
    assert {name: len(found) for name, found in Draws(DATA).rows(torch.arange(7)).items()} == {"anchors": 0, "negatives": 0}


@pytest.mark.parametrize(("kind", "expected"), [("union", 0.442), ("received", 0.056), ("global", 0.10)])
def test_shares_of_false_negatives(kind: Negatives, expected: float) -> None:
    """Ten clients of two classes, each class on two clients, degree 3, 6,000 own points, 300 of each neighbour, own anchors.

    By hand: an own negative has the anchor's class with 1/2. One of the nine others has the class, in half of its points, so
    a received negative has it with 1/18. Union: 6,000 / 6,900 x 1/2 + 900 / 6,900 x 1/18. Global: 1/10 x 1/2 + 9/10 x 1/18.
    """
    generator = rng()
    shares = []
    for _ in range(60):
        classes = _two_classes_each(generator)
        for client in range(10):
            others = torch.randperm(10, generator=generator)
            neighbors = [int(other) for other in others if int(other) != client][:3]
            held = [classes[client][torch.randint(2, (6000,), generator=generator)]]
            held += [classes[neighbor][torch.randint(2, (300,), generator=generator)] for neighbor in neighbors]
            labels = torch.cat(held)
            anchors = torch.randint(len(labels), (400,), generator=generator)
            drawn = draw_negatives(kind, anchors, 6000, 900, 0.1, generator)
            negatives = torch.randint(len(labels), (400,), generator=generator) if drawn is None else drawn[0]
            shares.append((labels[anchors] == labels[negatives])[anchors < 6000].double().mean())
    assert float(torch.stack(shares).mean()) == pytest.approx(expected, abs=0.012)


def _two_classes_each(generator: torch.Generator) -> Tensor:
    """Classes of ten clients, shape (10, 2): each class on two clients, no client with one class twice."""
    while True:
        dealt = torch.arange(10).repeat(2)[torch.randperm(20, generator=generator)].view(10, 2)
        if bool((dealt[:, 0] != dealt[:, 1]).all()):
            return dealt


def test_simclr_has_no_negatives_to_choose() -> None:
    with pytest.raises(UserError, match=r"method\.negatives = 'received' is for method\.loss = 'triplet'"):
        make(loss="simclr", negatives="received")
