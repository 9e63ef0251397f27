"""Masks cancel in the sum, and hide what they are added to."""

from __future__ import annotations

import itertools
from hashlib import sha256

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unisono.privacy.masking import FRACTION_BITS, from_fixed_point, mask, sum_masked, to_fixed_point

pytest.importorskip("cryptography")


def secret(first: int, second: int, salt: str = "") -> bytes:
    return sha256(f"{min(first, second)}-{max(first, second)}{salt}".encode()).digest()


def secrets_of(client: int, clients: list[int], salt: str = "") -> dict[int, bytes]:
    return {other: secret(client, other, salt) for other in clients if other != client}


def updates(clients: list[int]) -> dict[int, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return {
        client: {"a/w": torch.randn(5, 3, generator=generator), "a/b": torch.randn(7, generator=generator), "c": torch.zeros(0)}
        for client in clients
    }


@given(st.sets(st.integers(0, 50), min_size=2, max_size=5), st.floats(0.0, 1000.0))
def test_the_sum_of_masked_updates_is_the_weighted_sum(clients: set[int], weight: float) -> None:
    members = sorted(clients)
    plain = updates(members)
    weights = {client: weight + number for number, client in enumerate(members)}
    masked = {
        client: mask(to_fixed_point(plain[client], weights[client], len(members)), client, secrets_of(client, members))
        for client in members
    }
    total = from_fixed_point(sum_masked(masked))
    for name in total:
        expected = sum(weights[client] * plain[client][name].double() for client in members)
        torch.testing.assert_close(total[name].double(), expected, atol=len(members) * 2.0**-FRACTION_BITS, rtol=1e-6)


def test_a_masked_update_looks_uniform_and_changes_with_the_secret() -> None:
    numbers = {"x": torch.zeros(20000, dtype=torch.int64)}
    first = mask(numbers, 0, {1: secret(0, 1)})["x"]
    second = mask(numbers, 0, {1: secret(0, 1, "next round")})["x"]
    assert len(first.unique()) == len(first)
    assert not torch.equal(first, second)
    for bit in (0, 31, 62):
        share = ((first >> bit) & 1).double().mean()
        assert abs(float(share) - 0.5) < 0.02


def test_without_one_client_the_sum_is_noise() -> None:
    members = [0, 1, 2]
    fixed = {client: {"x": torch.full((1000,), 1, dtype=torch.int64)} for client in members}
    masked = {client: mask(fixed[client], client, secrets_of(client, members)) for client in members}
    assert torch.equal(sum_masked(masked)["x"], torch.full((1000,), 3))
    partial = sum_masked({client: masked[client] for client in (0, 1)})["x"]
    assert float(partial.double().abs().mean()) > 2.0**50


def test_what_would_overflow_or_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        to_fixed_point({"x": torch.tensor([1e9])}, 1e6, 3)
    ints = {"x": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(ValueError, match="not masked"):
        sum_masked({0: ints, 1: {"x": torch.zeros(2)}})
    with pytest.raises(ValueError, match="other names or shapes"):
        sum_masked({0: ints, 1: {"x": torch.zeros(1, dtype=torch.int64)}})


def test_pairs_use_the_same_mask_with_opposite_signs() -> None:
    zeros = {"x": torch.zeros(4, dtype=torch.int64)}
    for first, second in itertools.combinations(range(3), 2):
        one = mask(zeros, first, {second: secret(first, second)})["x"]
        other = mask(zeros, second, {first: secret(first, second)})["x"]
        assert torch.equal(one, -other)
