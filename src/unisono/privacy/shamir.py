"""Shamir's secret sharing over a prime field: any ``threshold`` shares give the secrets, fewer tell nothing about them.

The field has 2^256 + 297 elements, the smallest prime above 2^256, so that a secret is any 32 bytes. Python's integers do not
take constant time; the secrets that are shared here live for one sum.
"""

from __future__ import annotations

import secrets as system
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, points: Iterable[int]) -> dict[int, bytes]:
    """Return a share of a secret for each point.

    Args:
        secret: 32 bytes.
        threshold: how many shares give it back.
        points: different numbers from 1 on.
    """
    places = list(points)
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret)}")
    if not 1 <= threshold <= len(places) or len(set(places)) != len(places) or min(places) < 1:
        raise ValueError(f"{threshold} of {len(places)} shares need as many different points from 1 on")
    coefficients = [int.from_bytes(secret, "big"), *(system.randbelow(PRIME) for _ in range(threshold - 1))]
    return {point: _value(coefficients, point).to_bytes(SHARE_BYTES, "big") for point in places}


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret of exactly ``threshold`` shares; None if they give no secret, since one of them is wrong.

    A wrong share usually gives a wrong secret: compare it with a commitment.
    """
    points = tuple(shares)
    factors = lagrange(points)
    values = (int.from_bytes(shares[point], "big") for point in points)
    secret = sum(factor * value for factor, value in zip(factors, values, strict=True)) % PRIME
    return secret.to_bytes(SECRET_BYTES, "big") if secret < 2**256 else None


@lru_cache(maxsize=4)
def lagrange(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return the factors by which values at these points give the value at 0; the secrets of a sum share their points."""
    factors = []
    for own in points:
        above, below = 1, 1
        for other in points:
            if other != own:
                above, below = above * other % PRIME, below * (other - own) % PRIME
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(factors)


def _value(coefficients: Sequence[int], point: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * point + coefficient) % PRIME
    return total
