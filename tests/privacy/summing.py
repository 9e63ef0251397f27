"""A secure sum in one process: clients with keys of their own, a server, and clients that are lost on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from unisono.privacy.ring import Words
from unisono.privacy.secure_sum import Revealed, SumTerms, lowest_threshold
from unisono.privacy.secure_sum_client import ClientSum
from unisono.privacy.secure_sum_server import ServerSum

LIKE = [np.zeros(5, "<u4"), np.zeros(3, "<u8")]
STEPS = ("card", "shares", "masked", "alive", "reveal")


@cache
def key(client: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


class TestIdentity:
    """A client that trusts the first ``known`` clients."""

    __test__ = False

    def __init__(self, client: int, known: int = 100) -> None:
        self.client, self.known = client, known

    def sign(self, data: bytes) -> bytes:
        return key(self.client).sign(data)

    def verify(self, client: int, data: bytes, signature: bytes) -> bool:
        try:
            key(client).public_key().verify(signature, data)
        except InvalidSignature:
            return False
        return client < self.known


def terms(num_clients: int, threshold: int | None = None, **asked: Any) -> SumTerms:
    values = {"run": "r", "recipe": "a", "model": "m", "round": 0, "phase": "train", "nonce": "1", **asked}
    return SumTerms(values, tuple(range(num_clients)), threshold or lowest_threshold(num_clients))


def vector(client: int) -> list[Words]:
    rng = np.random.default_rng(client)
    return [rng.integers(0, np.iinfo(part.dtype).max, part.shape, dtype=part.dtype) for part in LIKE]


def client(number: int, asked: SumTerms, template: str = "t", metrics: Sequence[str] = ("loss",), **more: Any) -> ClientSum:
    groups = more.pop("groups", ("encoder",))
    return ClientSum(number, asked, TestIdentity(number), template, metrics, groups, lambda names: vector(number), **more)


class Sum:
    """A sum that is played step by step.

    Args:
        asked: the terms.
        lost: by step, who does not answer it any more.
        direct: without signatures where nobody has left before its vector had arrived.
    """

    def __init__(self, asked: SumTerms, lost: Mapping[str, Sequence[int]] | None = None, direct: bool = False) -> None:
        self.asked = asked
        self.direct = direct
        self.lost = lost or {}
        self.clients = {number: client(number, asked) for number in asked.cohort}
        self.server = ServerSum(asked, TestIdentity(-1).verify)
        self.shares_left = 0

    def there(self, step: str, among: Sequence[int]) -> list[int]:
        gone = {number for name in STEPS[: STEPS.index(step) + 1] for number in self.lost.get(name, ())}
        return [number for number in among if number not in gone]

    def until(self, last: str) -> None:
        for number in self.there("card", self.asked.cohort):
            self.server.take_card(number, self.clients[number].card)
        if last == "card":
            return
        self.cards = self.server.cards()
        for number in self.there("shares", [card.client for card in self.cards]):
            self.server.take_shares(number, *self.clients[number].share(self.cards))
        if last == "shares":
            return
        self.boxes = self.server.boxes()
        self.members = list(self.boxes)
        for number in self.there("masked", self.members):
            words, unreadable = self.clients[number].masked(self.members, self.boxes[number])
            self.server.take_masked(number, words, LIKE, unreadable)
        if last == "masked":
            return
        self.survivors = self.server.survivors()
        if last == "reveal" and self.direct and self.server.all_stayed:
            for number in self.there("reveal", self.survivors):
                self._reveal(number, self.clients[number].reveal_all(self.survivors))
            return
        for number in self.there("alive", self.survivors):
            self.server.take_alive(number, self.clients[number].alive(self.survivors))
        if last == "alive":
            return
        signatures = self.server.signatures()
        for number in self.there("reveal", sorted(signatures)):
            self._reveal(number, self.clients[number].reveal(signatures))

    def _reveal(self, number: int, revealed: Revealed) -> None:
        self.shares_left += len(revealed.seeds) + len(revealed.keys)
        self.server.take_revealed(number, revealed)

    def total(self) -> list[Words]:
        self.until("reveal")
        return self.server.total()

    def expected(self) -> list[Words]:
        parts = [vector(number) for number in self.survivors]
        return [sum(part[place] for part in parts).astype(LIKE[place].dtype) for place in range(2)]
