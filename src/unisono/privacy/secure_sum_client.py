"""A client's part of a secure sum: four or five messages, each of them once and in its order."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from unisono.privacy.ring import Words, add_streams
from unisono.privacy.secure_sum import (
    MAX_METRICS,
    MIN_COHORT,
    Card,
    Identity,
    Revealed,
    SumRefusedError,
    SumTerms,
    alive_body,
    all_metrics,
    canonical,
    check_cohort,
    commitment,
    derive,
    digest,
    mask_place,
    pair_mask,
    self_mask,
    sign,
    sum_id,
)
from unisono.privacy.shamir import SHARE_BYTES, split

STEPS = ("card", "shares", "masked", "alive", "reveal", "over")
NONCE = bytes(12)
"""A key of shares encrypts once."""


class ClientSum:
    """A client's part of one sum; a step that is asked for twice, out of order or after a failure is refused.

    Args:
        client_id: who.
        terms: what this client was asked.
        identity: signs, and knows the other clients.
        template: hash of the names and shapes of its vector.
        metrics: names of its metrics.
        groups: names of the groups that it has something to send for.
        vector: given the names of all clients' metrics, returns the vector; asked once, and forgotten then.
        min_cohort: fewest clients that its owner wants in a sum.
    """

    def __init__(
        self,
        client_id: int,
        terms: SumTerms,
        identity: Identity,
        template: str,
        metrics: Sequence[str],
        groups: Sequence[str],
        vector: Callable[[tuple[str, ...]], list[Words]],
        min_cohort: int = MIN_COHORT,
    ) -> None:
        check_cohort(client_id, terms, min_cohort)
        self._id = client_id
        self._terms = terms
        self._identity = identity
        self._fewest = max(terms.threshold, min_cohort, MIN_COHORT)
        self._fewest_senders = max(min_cohort, MIN_COHORT)
        self._vector: Callable[[tuple[str, ...]], list[Words]] | None = vector
        self._share_key, self._mask_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        card = Card(
            client_id,
            self._share_key.public_key().public_bytes_raw(),
            self._mask_key.public_key().public_bytes_raw(),
            template,
            tuple(sorted(metrics)[:MAX_METRICS]),
            tuple(sorted(groups)),
        )
        self.card = Card(**{**card.__dict__, "signature": identity.sign(card.body(terms.digest))})
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
        self._check_members(list(known), self._terms.cohort, len(cards))
        for card in cards:
            if not self._identity.verify(card.client, card.body(self._terms.digest), card.signature):
                raise SumRefusedError(f"client {card.client} was asked for something else than this one, or is not known here")
            if card.template != self.card.template:
                raise SumRefusedError(f"client {card.client} sends other tensors than this one")
        if known[self._id] != self.card:
            raise SumRefusedError("the server changed this client's card")
        self._cards = known
        self._check_senders(list(known))
        self._sid = sum_id(self._terms, cards)
        points = {client: client + 1 for client in known}
        seeds = split(self._seed, self._terms.threshold, points.values())
        keys = split(self._mask_key.private_bytes_raw(), self._terms.threshold, points.values())
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
        self._check_senders(members)
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
        self._check_senders(survivors)
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

    def reveal_all(self, survivors: Sequence[int]) -> Revealed:
        """Return shares of the seeds of all members, where the vector of every one has arrived; then everything is forgotten.

        This needs no signatures: a client that takes this way gives away no mask key, so no list of others that the server
        may tell elsewhere can take the masks off a smaller sum.

        Args:
            survivors: all members, and nobody else.
        """
        self._enter("alive")
        self._step = STEPS.index("over")
        shares, self._shares = self._shares, {}
        if sorted(survivors) != self._members:
            raise SumRefusedError("without signatures a client reveals only the sum over all that were masked with")
        return Revealed({client: shares[client][0] for client in self._members if client in shares}, {})

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

    def _check_senders(self, members: Sequence[int]) -> None:
        """Refuse a sum in which a group comes from few clients, because the others add zeros to it."""
        senders = Counter(group for client in members for group in self._cards[client].groups)
        for group, number in sorted(senders.items()):
            if number < self._fewest_senders:
                self._step = len(STEPS) - 1
                raise SumRefusedError(
                    f"{number} clients have something to send for group {group!r}, and a masked sum hides no fewer than "
                    f"{self._fewest_senders}"
                )

    def _box(self, sender: int, receiver: int) -> AESGCM:
        other = receiver if sender == self._id else sender
        secret = self._share_key.exchange(X25519PublicKey.from_public_bytes(self._cards[other].share_key))
        return AESGCM(derive(secret, digest(b"share", self._sid, canonical([sender, receiver]))))
