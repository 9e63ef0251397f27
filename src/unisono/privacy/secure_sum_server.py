"""The server's part of a secure sum: collect messages, and remove the masks of the sum, never of a single vector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from unisono.privacy.ring import Words, add_streams
from unisono.privacy.secure_sum import (
    MIN_COHORT,
    Card,
    Revealed,
    SumTerms,
    Verify,
    alive_body,
    commitment,
    is_key,
    mask_place,
    pair_mask,
    self_mask,
    sign,
    sum_id,
)
from unisono.privacy.shamir import SHARE_BYTES, combine


class VoidSumError(ValueError):
    """A sum that cannot be made: too few clients stayed, or shares do not fit. Nothing is revealed.

    Args:
        sentence: why.
        suspects: clients whose shares do not fit.
    """

    def __init__(self, sentence: str, suspects: Sequence[int] = ()) -> None:
        super().__init__(sentence)
        self.suspects = tuple(suspects)


class ServerSum:
    """The server's part of one sum. ``take_...`` raise a ValueError for a client whose message is wrong.

    Args:
        terms: what clients were asked.
        verify: whether a client signed something.
    """

    def __init__(self, terms: SumTerms, verify: Verify) -> None:
        self._terms = terms
        self._verify = verify
        self._cards: dict[int, Card] = {}
        self._boxes: dict[int, Mapping[int, bytes]] = {}
        self._commitments: dict[int, bytes] = {}
        self._unreadable: Counter[int] = Counter()
        self._total: list[Words] | None = None
        self._survivors: list[int] = []
        self._signatures: dict[int, bytes] = {}
        self._revealed: dict[int, Revealed] = {}
        self._sid = b""

    # --- what clients sent

    def take_card(self, client_id: int, card: Card) -> None:
        """Take the first message of a client."""
        signed = self._verify(client_id, card.body(self._terms.digest), card.signature)
        if card.client != client_id or not signed:
            raise ValueError("its card is not signed by its key for this request")
        if not (is_key(card.share_key) and is_key(card.mask_key)):
            raise ValueError("its card holds a key with which no exchange works")
        self._cards[client_id] = card

    def take_shares(self, client_id: int, boxes: Mapping[int, bytes], seed_commitment: bytes) -> None:
        """Take the encrypted shares of a client."""
        if boxes.keys() != self._cards.keys() - {client_id} or any(len(box) != 2 * SHARE_BYTES + 16 for box in boxes.values()):
            raise ValueError("it sent no share for some client of the sum, or one of another length")
        self._boxes[client_id] = dict(boxes)
        self._commitments[client_id] = seed_commitment

    def take_masked(self, client_id: int, vector: Sequence[Words], like: Sequence[Words], unreadable: Sequence[int]) -> None:
        """Add a masked vector.

        Args:
            client_id: whose.
            vector: its words.
            like: arrays of the types and lengths that they must have.
            unreadable: clients whose shares it cannot read.
        """
        if [(part.dtype, part.shape) for part in vector] != [(part.dtype, part.shape) for part in like]:
            raise ValueError("its masked vector has another length or other words")
        if self._total is None:
            self._total = [part.copy() for part in like]
        for total, part in zip(self._total, vector, strict=True):
            np.add(total, part, out=total)
        self._unreadable.update(set(unreadable) & self._boxes.keys() - {client_id})
        self._survivors = sorted([*self._survivors, client_id])

    def take_alive(self, client_id: int, signature: bytes) -> None:
        """Take a survivor's signature on the list."""
        if not self._verify(client_id, alive_body(self._sid, self._survivors), signature):
            raise ValueError("its signature on the list of survivors is wrong")
        self._signatures[client_id] = signature

    def take_revealed(self, client_id: int, revealed: Revealed) -> None:
        """Take a survivor's shares."""
        if any(len(share) != SHARE_BYTES for part in (revealed.seeds, revealed.keys) for share in part.values()):
            raise ValueError("its shares have another length")
        self._revealed[client_id] = revealed

    # --- what clients are sent

    def cards(self) -> list[Card]:
        """Return the cards of the clients that send the same tensors, the largest number of them.

        Whoever sends a group that too few others send is left out, where enough stay: with it the others would refuse.
        """
        templates = Counter(card.template for card in self._cards.values())
        if templates:
            chosen = max(sorted(templates), key=lambda template: templates[template])
            self._cards = {client: card for client, card in self._cards.items() if card.template == chosen}
        senders = Counter(group for card in self._cards.values() for group in card.groups)
        lonely = {group for group, number in senders.items() if number < MIN_COHORT}
        others = {client: card for client, card in self._cards.items() if not lonely & set(card.groups)}
        if len(others) >= self._terms.threshold:
            self._cards = others
        self._need(len(self._cards), "sent a card")
        cards = [self._cards[client] for client in sorted(self._cards)]
        self._sid = sum_id(self._terms, cards)
        return cards

    def boxes(self) -> dict[int, dict[int, bytes]]:
        """Return, for every client that gave shares, the shares of the others."""
        self._need(len(self._boxes), "shared their seeds")
        return {
            client: {sender: boxes[client] for sender, boxes in sorted(self._boxes.items()) if sender != client}
            for client in sorted(self._boxes)
        }

    def survivors(self) -> list[int]:
        """Return the clients whose vector arrived."""
        self._need(len(self._survivors), "sent a masked vector")
        return list(self._survivors)

    @property
    def all_stayed(self) -> bool:
        """True where the vector of every client that gave shares has arrived, so that no list needs to be confirmed."""
        return self._survivors == sorted(self._boxes)

    def signatures(self) -> dict[int, bytes]:
        """Return the survivors' signatures."""
        self._need(len(self._signatures), "confirmed the survivors")
        return dict(self._signatures)

    def total(self) -> list[Words]:
        """Return the sum of the survivors' vectors without masks."""
        self._need(len(self._revealed), "revealed their shares")
        assert self._total is not None
        place = mask_place(self._sid, list(self._boxes))
        streams: list[tuple[bytes, int]] = []
        suspects = []
        for client in self._survivors:
            shares = {sender: r.seeds[client] for sender, r in self._revealed.items() if client in r.seeds}
            seed = next((s for s in self._candidates(shares) if commitment(self._sid, s) == self._commitments[client]), None)
            if seed is None:
                suspects.append(client)
            else:
                streams.append((self_mask(seed, place), -1))
        for client in sorted(self._boxes.keys() - set(self._survivors)):
            shares = {sender: r.keys[client] for sender, r in self._revealed.items() if client in r.keys}
            found = map(X25519PrivateKey.from_private_bytes, self._candidates(shares))
            private = next((one for one in found if self._fits(one, client)), None)
            if private is None:
                suspects.append(client)
                continue
            for other in self._survivors:
                key = pair_mask(private, self._cards[other].mask_key, place, client, other)
                streams.append((key, -sign(other, client)))
        if suspects:
            raise VoidSumError(
                f"the shares of {_names(suspects)} do not fit, so this masked sum is void and nothing is revealed", suspects
            )
        add_streams(self._total, streams)
        return self._total

    def blamed(self) -> list[int]:
        """Return the clients whose shares most others could not read."""
        return [client for client, number in self._unreadable.items() if number > len(self._survivors) / 2]

    def _fits(self, private: X25519PrivateKey, client: int) -> bool:
        return private.public_key().public_bytes_raw() == self._cards[client].mask_key

    def _candidates(self, shares: Mapping[int, bytes]) -> Iterator[bytes]:
        """Yield secrets that ``threshold`` of the shares give: of the first ones, then without each single client."""
        senders, needed = sorted(shares), self._terms.threshold
        for left_out in (None, *senders):
            chosen = [sender for sender in senders if sender != left_out][:needed]
            if len(chosen) == needed:
                secret = combine({sender + 1: shares[sender] for sender in chosen})
                if secret is not None:
                    yield secret

    def _need(self, number: int, what: str) -> None:
        needed = self._terms.threshold
        if number < needed:
            asked = len(self._terms.cohort)
            raise VoidSumError(
                f"{number} of {asked} clients {what}, and this masked sum needs {needed}: it is void, and nothing is revealed"
            )


def _names(clients: Sequence[int]) -> str:
    return ("client " if len(clients) == 1 else "clients ") + ", ".join(map(str, clients))
