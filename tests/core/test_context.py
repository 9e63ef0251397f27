"""Randomness depends on (seed, round, phase, client, stream) and on nothing else."""

import pickle
from dataclasses import replace

import numpy as np
import torch

from unisono.core.context import SERVER, Context

PLACE = Context(seed=7, round=3, phase="train", client_id=5)


def draw(ctx: Context, stream: str) -> list[float]:
    return torch.rand(4, generator=ctx.rng(stream)).tolist()  # type: ignore[no-any-return]


def test_known_values() -> None:
    """Noted once: if they change, every seeded run of every user changes with them."""
    assert PLACE.rng("views").initial_seed() == 8937270580531165875
    assert Context(0).rng("weights").initial_seed() == 7215633412597530499
    assert PLACE.numpy_rng("order").integers(0, 2**32, 3).tolist() == [1396259730, 1903314104, 1451192745]
    assert torch.randint(0, 2**31, (3,), generator=PLACE.rng("views")).tolist() == [1643851264, 427896697, 2006881164]


def test_neither_order_nor_other_draws_matter() -> None:
    forwards = {stream: draw(PLACE, stream) for stream in ("a", "b", "c")}
    torch.rand(1000)
    np.random.default_rng().random(3)
    backwards = {stream: draw(PLACE, stream) for stream in ("c", "b", "a")}
    assert forwards == backwards
    generator = PLACE.rng("a")
    torch.rand(100, generator=generator)
    assert draw(PLACE, "a") == forwards["a"]


def test_global_randomness_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    PLACE.rng("a")
    PLACE.numpy_rng("a").random()
    assert torch.equal(torch.rand(3), expected)


def test_every_part_of_the_place_gives_another_stream() -> None:
    places = [
        PLACE,
        replace(PLACE, seed=8),
        replace(PLACE, round=4),
        replace(PLACE, phase="cluster"),
        replace(PLACE, client_id=6),
        replace(PLACE, client_id=SERVER),
        Context(7, 35, "train", 5),
        Context(73, 5, "train", 5),
    ]
    seeds = [ctx.rng("views").initial_seed() for ctx in places] + [PLACE.rng("order").initial_seed()]
    assert len(set(seeds)) == len(seeds)
    # torch's generator on the CPU looks at the lower half of a seed alone.
    assert len({seed % 2**32 for seed in seeds}) == len(seeds)


def test_neighbouring_clients_draw_independently() -> None:
    """The correlation of 200 clients' first 50 draws, each with the next client's, is 0 within five standard errors."""
    draws = torch.stack([torch.randn(50, generator=PLACE.at(client_id=client).rng("x")) for client in range(200)])
    product = (draws[:-1] * draws[1:]).mean()
    assert abs(float(product)) < 5 / (199 * 50) ** 0.5


def test_the_device_does_not_matter() -> None:
    assert draw(replace(PLACE, device=torch.device("meta")), "a") == draw(PLACE, "a")


def test_a_context_crosses_processes() -> None:
    there = pickle.loads(pickle.dumps(PLACE))
    assert there == PLACE
    assert draw(there, "a") == draw(PLACE, "a")


def test_seeds_fit_torch_and_numpy() -> None:
    seeds = [Context(0, round).rng("x").initial_seed() for round in range(100)]
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_at_changes_what_is_given() -> None:
    assert PLACE.at() == PLACE
    assert PLACE.at(client_id=0) == Context(7, 3, "train", 0)
    assert PLACE.at(phase="") == Context(7, 3, "", 5)
    assert PLACE.at(phase="offer", client_id=SERVER) == Context(7, 3, "offer")
