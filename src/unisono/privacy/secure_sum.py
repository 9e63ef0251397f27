"""Secure aggregation with recovery from drop-outs: the server learns a sum over clients, and nothing about a single one.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), with double masks and the
consistency check against an active server. Five messages per sum:

1. card: two fresh public keys, signed together with a hash of everything that the client was asked.
2. shares: a client checks that all cards were signed for the same request, and gives every other client an encrypted share of
   its mask seed and of its mask key.
3. masked: its vector plus its own mask plus masks that cancel in pairs.
4. alive: its signature on the list of clients whose vector has arrived.
5. reveal: shares of the seeds of those, and of the keys of the others; never both of one client.

The classes here send nothing: ``ClientSum`` and ``ServerSum`` turn one message into the next.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from unisono.privacy.ring import Words, add_streams
from unisono.privacy.shamir import SHARE_BYTES, split

MIN_COHORT = 3
"""Fewest clients of a sum; with fewer, a client could subtract its own part from the sum and see the other's."""
STEPS = ("card", "shares", "masked", "alive", "reveal", "over")
MAX_METRICS = 32
NONCE = bytes(12)
"""A key of shares encrypts once."""
Verify = Callable[[int, bytes, bytes], bool]
"""Return whether a client signed these bytes."""


class SumRefusedError(ValueError):
    """A request that would weaken a masked sum. Its sentence depends on no sample."""


class Identity(Protocol):
    """A client's key, and the keys of those whom it trusts."""

    def sign(self, data: bytes) -> bytes:
        """Return the client's signature."""

    def verify(self, client_id: int, data: bytes, signature: bytes) -> bool:
        """Return whether a known client signed these bytes."""


def lowest_threshold(num_clients: int) -> int:
    """Return the fewest clients that must stay: more than two thirds, so that no two lists of survivors are both confirmed."""
    return 2 * num_clients // 3 + 1


@dataclass(frozen=True)
class Agreement:
    """Everything that the clients of a sum must be asked alike.

    Args:
        asked: run, recipe, model, round, phase and nonce, as plain values.
        cohort: the clients, ascending.
        threshold: how many must stay to the end.
    """

    asked: Mapping[str, Any]
    cohort: tuple[int, ...]
    threshold: int

    @property
    def digest(self) -> bytes:
        """Hash that clients sign."""
        return digest(b"agreement", canonical([dict(self.asked), list(self.cohort), self.threshold]))


@dataclass(frozen=True)
class Card:
    """First message of a client.

    Args:
        client: who.
        share_key: X25519, for encrypted shares.
        mask_key: X25519, for pair masks.
        template: hash of the names and shapes of its vector.
        metrics: names of its metrics.
        signature: of all this and of the agreement.
    """

    client: int
    share_key: bytes
    mask_key: bytes
    template: str
    metrics: tuple[str, ...]
    signature: bytes = b""

    def body(self, agreement: bytes) -> bytes:
        """Return what is signed."""
        return digest(b"card", agreement, canonical({**self.as_json(), "signature": ""}))

    def as_json(self) -> dict[str, Any]:
        """Return the card as plain values."""
        return {
            "client": self.client,
            "share_key": self.share_key.hex(),
            "mask_key": self.mask_key.hex(),
            "template": self.template,
            "metrics": list(self.metrics),
            "signature": self.signature.hex(),
        }

    @staticmethod
    def read(values: Any) -> Card:
        """Return what ``as_json`` wrote; raise a ValueError if it is damaged."""
        try:
            keys = [bytes.fromhex(values[name]) for name in ("share_key", "mask_key", "signature")]
            metrics = tuple(str(name)[:64] for name in values["metrics"])
            card = Card(int(values["client"]), keys[0], keys[1], str(values["template"])[:64], metrics, keys[2])
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"a card of a masked sum is damaged: {error}") from error
        if len(card.share_key) != 32 or len(card.mask_key) != 32 or len(metrics) > MAX_METRICS:
            raise ValueError("a card of a masked sum is damaged: its keys have 32 bytes, and its metrics are few")
        return card


@dataclass(frozen=True)
class Revealed:
    """Last message of a client: its shares of seeds and of mask keys, by the client that made them."""

    seeds: Mapping[int, bytes]
    keys: Mapping[int, bytes]


class ClientSum:
    """A client's part of one sum; a step that is asked for twice, out of order or after a failure is refused.

    Args:
        client_id: who.
        agreement: what this client was asked.
        identity: signs, and knows the other clients.
        template: hash of the names and shapes of its vector.
        metrics: names of its metrics.
        vector: given the names of all clients' metrics, returns the vector; asked once, and forgotten then.
        min_cohort: fewest clients that its owner wants in a sum.
    """

    def __init__(
        self,
        client_id: int,
        agreement: Agreement,
        identity: Identity,
        template: str,
        metrics: Sequence[str],
        vector: Callable[[tuple[str, ...]], list[Words]],
        min_cohort: int = MIN_COHORT,
    ) -> None:
        check_cohort(client_id, agreement, min_cohort)
        self._id = client_id
        self._agreement = agreement
        self._identity = identity
        self._fewest = max(agreement.threshold, min_cohort, MIN_COHORT)
        self._vector: Callable[[tuple[str, ...]], list[Words]] | None = vector
        self._share_key, self._mask_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        card = Card(
            client_id,
            self._share_key.public_key().public_bytes_raw(),
            self._mask_key.public_key().public_bytes_raw(),
            template,
            tuple(sorted(metrics)[:MAX_METRICS]),
        )
        self.card = Card(**{**card.__dict__, "signature": identity.sign(card.body(agreement.digest))})
        self._step = 1
        self._sid = b""
        self._seed = os.urandom(32)
        self._cards: dict[int, Card] = {}
        self._members: list[int] = []
        self._survivors: list[int] = []
        self._shares: dict[int, tuple[bytes, bytes]] = {}

    def share(self, cards: Sequence[Card]) -> tuple[dict[int, bytes], bytes]:
        """Return an encrypted pair of shares for every other client, and the commitment to the seed."""
        self._enter("shares")
        known = {card.client: card for card in cards}
        self._check_members(list(known), self._agreement.cohort, len(cards))
        for card in cards:
            if not self._identity.verify(card.client, card.body(self._agreement.digest), card.signature):
                raise SumRefusedError(f"client {card.client} was asked for something else than this one, or is not known here")
            if card.template != self.card.template:
                raise SumRefusedError(f"client {card.client} sends other tensors than this one")
        if known[self._id] != self.card:
            raise SumRefusedError("the server changed this client's card")
        self._cards = known
        self._sid = sum_id(self._agreement, cards)
        points = {client: client + 1 for client in known}
        seeds = split(self._seed, self._agreement.threshold, points.values())
        keys = split(self._mask_key.private_bytes_raw(), self._agreement.threshold, points.values())
        self._shares[self._id] = (seeds[self._id + 1], keys[self._id + 1])
        boxes = {}
        for other in known.keys() - {self._id}:
            plain = seeds[points[other]] + keys[points[other]]
            boxes[other] = self._box(self._id, other).encrypt(NONCE, plain, None)
        return boxes, commitment(self._sid, self._seed)

    def masked(self, members: Sequence[int], boxes: Mapping[int, bytes]) -> tuple[list[Words], list[int]]:
        """Return the masked vector, and the clients whose shares cannot be read; the vector itself is forgotten.

        Args:
            members: the clients that gave shares.
            boxes: theirs for this client.
        """
        self._enter("masked")
        self._check_members(members, list(self._cards), len(members))
        self._members = sorted(members)
        unreadable = []
        for other in self._members:
            if other == self._id:
                continue
            try:
                plain = self._box(other, self._id).decrypt(NONCE, boxes[other], None)
                self._shares[other] = (plain[:SHARE_BYTES], plain[SHARE_BYTES:])
            except (InvalidTag, LookupError, ValueError):
                unreadable.append(other)
        names = all_metrics(self._cards.values())
        assert self._vector is not None
        words, self._vector = self._vector(names), None
        place = mask_place(self._sid, self._members)
        streams = [(self_mask(self._seed, place), 1)]
        for other in self._members:
            if other != self._id:
                streams.append(
                    (pair_mask(self._mask_key, self._cards[other].mask_key, place, self._id, other), sign(self._id, other))
                )
        add_streams(words, streams)
        return words, unreadable

    def alive(self, survivors: Sequence[int]) -> bytes:
        """Return this client's signature on the list of clients whose vector has arrived."""
        self._enter("alive")
        self._check_members(survivors, self._members, len(survivors))
        self._survivors = sorted(survivors)
        return self._identity.sign(alive_body(self._sid, self._survivors))

    def reveal(self, signatures: Mapping[int, bytes]) -> Revealed:
        """Return shares: of the seeds of survivors, of the mask keys of the others. Then everything is forgotten.

        Args:
            signatures: of survivors on their list.
        """
        self._enter("reveal")
        body = alive_body(self._sid, self._survivors)
        valid = [client for client in self._survivors if self._identity.verify(client, body, signatures.get(client, b""))]
        if len(valid) < self._fewest:
            raise SumRefusedError(
                f"{len(valid)} clients confirmed this list of survivors, and the sum needs {self._fewest}: nothing is revealed"
            )
        shares, self._shares = self._shares, {}
        lost = set(self._members) - set(self._survivors)
        return Revealed(
            {client: shares[client][0] for client in self._survivors if client in shares},
            {client: shares[client][1] for client in sorted(lost) if client in shares},
        )

    def _enter(self, step: str) -> None:
        """Go to the next step; a failure in it leaves no way back."""
        if STEPS[self._step] != step:
            self._step = len(STEPS) - 1
            self._vector, self._shares = None, {}
            raise SumRefusedError(f"step {step!r} of a masked sum comes once and in its order")
        self._step += 1

    def _check_members(self, members: Sequence[int], among: Sequence[int], number: int) -> None:
        if len(set(members)) != number or not set(members) <= set(among) or self._id not in members:
            self._step = len(STEPS) - 1
            raise SumRefusedError("the clients of a masked sum are different ones of those asked, and this one is among them")
        if number < self._fewest:
            self._step = len(STEPS) - 1
            raise SumRefusedError(f"{number} clients are left, and this masked sum needs {self._fewest}")

    def _box(self, sender: int, receiver: int) -> AESGCM:
        other = receiver if sender == self._id else sender
        secret = self._share_key.exchange(X25519PublicKey.from_public_bytes(self._cards[other].share_key))
        return AESGCM(derive(secret, digest(b"share", self._sid, canonical([sender, receiver]))))


def check_cohort(client_id: int, agreement: Agreement, min_cohort: int) -> None:
    """Raise a SumRefusedError if a cohort or its threshold is too small, or the client is not in it."""
    cohort, fewest = agreement.cohort, max(min_cohort, MIN_COHORT)
    if len(set(cohort)) != len(cohort) or client_id not in cohort or len(cohort) < fewest:
        raise SumRefusedError(
            f"a masked sum needs at least {fewest} different clients and this one among them, got {list(cohort)}"
        )
    if not lowest_threshold(len(cohort)) <= agreement.threshold <= len(cohort):
        raise SumRefusedError(
            f"of {len(cohort)} clients at least {lowest_threshold(len(cohort))} must stay, and the server wants "
            f"{agreement.threshold}"
        )


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of parts, each with its length before it."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def canonical(value: Any) -> bytes:
    """Return plain values as JSON, the same bytes for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def derive(secret: bytes, purpose: bytes) -> bytes:
    """Return a key of 32 bytes for one purpose."""
    return HKDF(hashes.SHA256(), 32, salt=None, info=purpose).derive(secret)


def sum_id(agreement: Agreement, cards: Sequence[Card]) -> bytes:
    """Return the name of a sum: a hash of what was asked and of all cards."""
    return digest(b"sum", agreement.digest, *(canonical(card.as_json()) for card in sorted(cards, key=lambda c: c.client)))


def commitment(sid: bytes, seed: bytes) -> bytes:
    """Return what a client tells of its seed, so that wrong shares are noticed."""
    return digest(b"seed", sid, seed)


def alive_body(sid: bytes, survivors: Sequence[int]) -> bytes:
    """Return what survivors sign."""
    return digest(b"alive", sid, canonical(sorted(survivors)))


def mask_place(sid: bytes, members: Sequence[int]) -> bytes:
    """Return what the masks of a sum depend on."""
    return digest(b"mask", sid, canonical(sorted(members)))


def self_mask(seed: bytes, place: bytes) -> bytes:
    """Return the key of a client's own mask."""
    return derive(seed, digest(b"self", place))


def pair_mask(private: X25519PrivateKey, public: bytes, place: bytes, first: int, second: int) -> bytes:
    """Return the key of the mask that two clients share."""
    secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    return derive(secret, digest(b"pair", place, canonical(sorted((first, second)))))


def sign(own: int, other: int) -> int:
    """Return whether a client adds (1) or subtracts (-1) the mask that it shares with another."""
    return 1 if own < other else -1


def all_metrics(cards: Any) -> tuple[str, ...]:
    """Return the names of the metrics of all clients, sorted."""
    return tuple(sorted({name for card in cards for name in card.metrics}))
