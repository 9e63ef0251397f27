"""Updates that are far longer than the others of their round."""

from __future__ import annotations

import pytest
import torch

from unisono.core.payload import Payload, Reduce, Reveals, Share
from unisono.federation.screening import too_long, unlike, update_norm

SHARES = {"net": Share(Reduce.MEAN, Reveals.PARAMETERS), "means": Share(Reduce.STACK, Reveals.STATISTICS)}


def test_length_of_an_update_by_hand() -> None:
    received = Payload({"net": {"a": torch.tensor([1.0, 1.0])}})
    update = Payload({"net": {"a": torch.tensor([4.0, 1.0]), "b": torch.tensor([4.0])}, "means": {"x": torch.tensor([100.0])}})
    assert update_norm(update, received, SHARES) == pytest.approx(5.0)


def test_one_that_is_far_longer_is_named() -> None:
    norms = {0: 1.0, 1: 1.2, 2: 0.9, 3: 1.1, 4: 40.0}
    (reason,) = too_long(norms, 10.0).values()
    assert reason == (
        "its update has length 40, 141 robust standard deviations beyond the median of its round (1.1), "
        "and aggregation.screen = 10 is the most"
    )
    assert too_long(norms, 0.0) == {}
    assert list(too_long({**norms, 4: float("nan")}, 10.0)) == [4]
    assert list(too_long({**norms, 4: float("inf")}, 10.0)) == [4]
    assert list(too_long({0: 0.0, 1: 0.0, 2: 0.0, 3: 1.0}, 10.0)) == [3], "where the others stand still"


def test_sites_of_different_size_stay() -> None:
    assert too_long({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 3.4}, 10.0) == {}
    assert too_long({0: 1.0, 1: 1.0, 2: 30.0}, 10.0) == {}, "three say nothing about who is wrong"


def test_a_third_of_liars_does_not_hide_itself() -> None:
    honest = {client: 1.0 + client / 20 for client in range(7)}
    assert list(too_long({**honest, 7: 1000.0, 8: 1000.0, 9: 1000.0}, 10.0)) == [7, 8, 9]


def test_most_clients_say_which_shapes_are_right() -> None:
    right, wrong = {"net": {"w": (2, 3)}}, {"net": {"w": (3, 2)}}
    assert unlike({0: wrong, 1: right, 2: right}) == {
        0: "group 'net' has tensors of other names or shapes than most clients sent"
    }
    assert list(unlike({0: right, 1: {"net": {"v": (2, 3)}}, 2: right, 3: {}})) == [1], "who sends no such group is not wrong"
    assert unlike({0: {}}) == {}
