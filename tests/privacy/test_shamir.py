"""Shares: enough of them give the secret, one too few tell nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.privacy.shamir import PRIME, combine, split


@given(st.binary(min_size=32, max_size=32), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, data: st.DataObject) -> None:
    points = data.draw(st.lists(st.integers(1, 2000), min_size=1, max_size=8, unique=True))
    threshold = data.draw(st.integers(1, len(points)))
    shares = split(secret, threshold, points)
    chosen = data.draw(st.permutations(points))[:threshold]
    assert combine({point: shares[point] for point in chosen}) == secret


def test_one_share_too_few_fits_every_secret() -> None:
    """For any secret there is exactly one share at a further point that gives it together with those known."""
    shares = split(bytes(32), 3, [1, 2, 3])
    known = {point: int.from_bytes(shares[point], "big") for point in (1, 2)}
    for wanted in (0, 1, 12345, 2**256 - 1):
        # The polynomial of degree 2 through (0, wanted) and both shares, at 3: third differences are zero.
        third = (wanted - 3 * known[1] + 3 * known[2]) % PRIME
        found = combine({**{point: shares[point] for point in (1, 2)}, 3: third.to_bytes(33, "big")})
        assert found == wanted.to_bytes(32, "big")


def test_a_single_share_is_spread_over_the_whole_field() -> None:
    tops = [split(bytes(32), 2, [1, 2])[1] for _ in range(2000)]
    mean = sum(int.from_bytes(share, "big") for share in tops) / len(tops) / PRIME
    assert abs(mean - 0.5) < 6 / (12 * len(tops)) ** 0.5


def test_a_wrong_share_gives_another_secret() -> None:
    shares = split(bytes(31) + b"\1", 3, [1, 2, 3])
    assert combine({**shares, 2: shares[1]}) != bytes(31) + b"\1"


def test_the_field_is_a_prime_above_all_secrets() -> None:
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # Miller-Rabin
        power = pow(base, odd, PRIME)
        passed = power in (1, PRIME - 1)
        for _ in range(twos - 1):
            power = power * power % PRIME
            passed = passed or power == PRIME - 1
        assert passed
    assert PRIME > 2**256


@pytest.mark.parametrize(("threshold", "points"), [(0, [1]), (3, [1, 2]), (1, [0]), (2, [1, 1])])
def test_what_cannot_be_shared_is_refused(threshold: int, points: list[int]) -> None:
    with pytest.raises(ValueError, match="different points"):
        split(bytes(32), threshold, points)
    with pytest.raises(ValueError, match="32 bytes"):
        split(b"short", 1, [1])
