"""Secure aggregation with recovery from drop-outs: the server learns a sum over clients, and nothing about a single one.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), with double masks and the
consistency check against an active server. Five messages per sum, or four where nobody leaves between the second and the third:

1. card: two fresh public keys, signed together with a hash of everything that the client was asked.
2. shares: a client checks that all cards were signed for the same request, and gives every other client an encrypted share of
   its mask seed and of its mask key.
3. masked: its vector plus its own mask plus masks that cancel in pairs.
4. alive: its signature on the list of clients whose vector has arrived; left out where that is every one of them.
5. reveal: shares of the seeds of those, and of the keys of the others; never both of one client.

Without the fourth message a client reveals seeds only, of all that it has masked with. More than two thirds must reveal, so
nobody's seed and key are both revealed, and the server learns the sum over all or nothing (docs/deployment.md says why).

The classes here send nothing: ``ClientSum`` and ``ServerSum`` turn one message into the next.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MIN_COHORT = 3
"""Fewest clients of a sum; with fewer, a client could subtract its own part from the sum and see the other's."""
MAX_METRICS = 32
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
class SumTerms:
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
        return digest(b"terms", canonical([dict(self.asked), list(self.cohort), self.threshold]))


@dataclass(frozen=True)
class Card:
    """First message of a client.

    Args:
        client: who.
        share_key: X25519, for encrypted shares.
        mask_key: X25519, for pair masks.
        template: hash of the names and shapes of its vector.
        metrics: names of its metrics.
        groups: names of the groups that it has something to send for; it adds zeros to the others.
        signature: of all this and of the terms.
    """

    client: int
    share_key: bytes
    mask_key: bytes
    template: str
    metrics: tuple[str, ...]
    groups: tuple[str, ...]
    signature: bytes = b""

    def body(self, terms: bytes) -> bytes:
        """Return what is signed."""
        return digest(b"card", terms, canonical({**self.as_json(), "signature": ""}))

    def as_json(self) -> dict[str, Any]:
        """Return the card as plain values."""
        return {
            "client": self.client,
            "share_key": self.share_key.hex(),
            "mask_key": self.mask_key.hex(),
            "template": self.template,
            "metrics": list(self.metrics),
            "groups": list(self.groups),
            "signature": self.signature.hex(),
        }

    @staticmethod
    def read(values: Any) -> Card:
        """Return what ``as_json`` wrote; raise a ValueError if it is damaged."""
        try:
            keys = [bytes.fromhex(values[name]) for name in ("share_key", "mask_key", "signature")]
            metrics = tuple(str(name)[:64] for name in values["metrics"])
            groups = tuple(str(name)[:64] for name in values["groups"])
            card = Card(int(values["client"]), keys[0], keys[1], str(values["template"])[:64], metrics, groups, keys[2])
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


def check_cohort(client_id: int, terms: SumTerms, min_cohort: int) -> None:
    """Raise a SumRefusedError if a cohort or its threshold is too small, or the client is not in it."""
    cohort, fewest = terms.cohort, max(min_cohort, MIN_COHORT)
    if len(set(cohort)) != len(cohort) or client_id not in cohort or len(cohort) < fewest:
        raise SumRefusedError(
            f"a masked sum needs at least {fewest} different clients and this one among them, got {list(cohort)}"
        )
    if not lowest_threshold(len(cohort)) <= terms.threshold <= len(cohort):
        raise SumRefusedError(
            f"of {len(cohort)} clients at least {lowest_threshold(len(cohort))} must stay, and the server wants "
            f"{terms.threshold}"
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


def sum_id(terms: SumTerms, cards: Sequence[Card]) -> bytes:
    """Return the name of a sum: a hash of what was asked and of all cards."""
    return digest(b"sum", terms.digest, *(canonical(card.as_json()) for card in sorted(cards, key=lambda c: c.client)))


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


def is_key(public: bytes) -> bool:
    """Return whether a secret can be agreed on with a public key; there are a few with which every exchange fails."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def sign(own: int, other: int) -> int:
    """Return whether a client adds (1) or subtracts (-1) the mask that it shares with another."""
    return 1 if own < other else -1


def all_metrics(cards: Any) -> tuple[str, ...]:
    """Return the names of the metrics of all clients, sorted."""
    return tuple(sorted({name for card in cards for name in card.metrics}))
