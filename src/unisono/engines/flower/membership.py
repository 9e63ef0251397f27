"""Track connected clients: which node each client lives on, and whether it may train.

A new client of a real federation describes its data before it may train; a simulated one has a node from the start.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flwr.app import Message
from flwr.serverapp import Grid

from unisono.core.errors import UserError
from unisono.engines.flower.messages import (
    DAMAGED,
    MOST_REASON,
    UNREADABLE,
    check_texts,
    failure_of,
    read_values,
    told_text,
    values_content,
)
from unisono.federation.client_turn import FederatedDataset

Description = Mapping[str, Any]
RetryDelay = Callable[[str], float | None]
"""Return the seconds after which a client that has refused may agree, from its reason; None if it is not asked again."""
AdmissionCheck = Callable[[int, Description], str | None]
"""Return why a client cannot take part, from its description; None if it can."""

QUERY_SECONDS = 300.0
DAMAGED_SECONDS = 5.0
"""Time until a node is asked again whose message was damaged on its way."""
SILENT = "silent"
"""Said of a client that has let a deadline pass, or was lost."""
MOST_STRIKES, REST_ROUNDS = 3, 10
SOON = 30.0
"""Seconds that the start of a run waits for a client that cannot yet."""


class Membership(Protocol):
    """The clients of a federation and the nodes they live on."""

    @property
    def num_clients(self) -> int:
        """Size of the federation."""

    def available(self) -> Sequence[int] | None:
        """Return the clients that can be asked now, ascending; None where all can."""

    def node_of(self, client_id: int) -> int | None:
        """Return the node that a client lives on, None where it is away."""

    def num_samples(self, client_id: int) -> int:
        """Return the number of samples that a client owns."""

    def heard(self, client_id: int, reason: str) -> None:
        """Take note of what a client said: nothing if it did its work, why it did not, or ``SILENT``."""


class SimulatedMembership:
    """One node per client, in any order.

    Args:
        nodes: their ids.
        clients: whose data is simulated.
    """

    def __init__(self, nodes: Sequence[int], clients: FederatedDataset) -> None:
        self._nodes = sorted(nodes)
        self._clients = clients

    @property
    def num_clients(self) -> int:
        """Size of the federation."""
        return len(self._clients)

    def available(self) -> None:
        """Return None: all clients are available."""

    def node_of(self, client_id: int) -> int:
        """The client's node."""
        return self._nodes[client_id % len(self._nodes)]

    def num_samples(self, client_id: int) -> int:
        """Return the number of samples that a client owns."""
        return self._clients.num_samples(client_id)

    def heard(self, client_id: int, reason: str) -> None:
        """Do nothing: a simulated client can always be asked again."""


@dataclass
class _Asked:
    node: int
    since: float


class FlowerMembership:
    """The nodes of a federation and the clients that live on them.

    Args:
        grid: Flower's.
        num_clients: size of the federation.
        keys: client id by public key; None believes what clients say, which an insecure federation has to.
        question: what every new client is asked.
        on_note: told who comes, who is left out, and why.
    """

    def __init__(
        self,
        grid: Grid,
        num_clients: int,
        keys: Mapping[bytes, int] | None,
        question: Mapping[str, Any],
        on_note: Callable[[str], None] = lambda note: None,
    ) -> None:
        self._grid = grid
        self.num_clients = num_clients
        self._keys = keys
        self._question = values_content("question", question)
        self._on_note = on_note
        self._asked: dict[str, _Asked] = {}
        self._silent: set[int] = set()
        self._online: set[int] = set()
        self._nodes: dict[int, int] = {}
        self.descriptions: dict[int, Description] = {}
        self.refused: dict[int, str] = {}
        self.retry_delay: RetryDelay = lambda reason: None
        self._later: dict[int, float] = {}
        self._paused: dict[int, float] = {}
        self._strikes: Counter[int] = Counter()
        self._resting: dict[int, int] = {}
        self.admission_check: AdmissionCheck = lambda client_id, description: None
        self.wanted = 1
        self.patience = 0.0

    def refresh(self) -> None:
        """Look for nodes, ask new ones to describe themselves, and read their descriptions."""
        nodes = {node.node_id: node.public_key for node in self._grid.get_nodes()}
        self._online = set(nodes)
        pending = {asked.node for asked in self._asked.values()}
        self._later = {node: until for node, until in self._later.items() if until > time.monotonic()}
        known = {*self._nodes.values(), *pending, *self._silent, *self._later}
        for node, key in nodes.items():
            if node in known:
                continue
            if self._keys is not None and key not in self._keys:
                self._silent.add(node)
                self._on_note(f"node {node} is not one of this federation's and is not asked")
                continue
            sent = list(self._grid.push_messages([Message(self._question, node, "query", ttl=QUERY_SECONDS)]))
            if sent and sent[0]:
                self._asked[sent[0]] = _Asked(node, time.monotonic())
        self._collect(nodes)

    def wait(self, wanted: int, seconds: float) -> None:
        """Wait until so many clients have described themselves or refused, or for so long; go on with those that are there.

        A client that may agree within seconds, because its owner is asked, has not refused yet.
        """
        deadline = time.monotonic() + seconds
        self.refresh()
        while len(self.descriptions) + self._num_refused < wanted and time.monotonic() < deadline:
            time.sleep(0.3)
            self.refresh()

    @property
    def _num_refused(self) -> int:
        delays = [self.retry_delay(reason) for reason in self.refused.values()]
        return sum(delay is None or delay > SOON for delay in delays)

    def set_admission_check(self, check: AdmissionCheck) -> None:
        """Check all clients that have described themselves, and from now on every new one."""
        self.admission_check = check
        for client_id, description in list(self.descriptions.items()):
            self._check_admission(client_id, description)

    def send_notice(self, client_id: int, sentence: str) -> None:
        """Send a client a sentence for its log."""
        node = self._nodes.get(client_id)
        if node is not None:
            self._grid.push_messages(
                [Message(values_content("question", {"told": sentence}), node, "query", ttl=QUERY_SECONDS)]
            )

    def available(self) -> Sequence[int]:
        """Return the connected clients that fit, ascending; wait up to ``patience`` seconds for ``wanted`` of them."""
        deadline = time.monotonic() + self.patience
        while True:
            self.refresh()
            self._paused = {client: until for client, until in self._paused.items() if until > time.monotonic()}
            present = sorted(
                client for client in self.descriptions if self._nodes[client] in self._online and client not in self._paused
            )
            if len(present) >= self._num_wanted:
                return self._without_resting(present)
            if time.monotonic() >= deadline:
                if present:
                    return present
                away = ", ".join(f"client {client}" for client in sorted(self._paused))
                state = f"is willing to work now ({away} will be later)" if away else "is connected"
                raise UserError(f"No client {state}, after {self.patience:g} s: see 'unisono deploy status'.")
            time.sleep(1.0)

    def _without_resting(self, present: list[int]) -> list[int]:
        """Leave out clients that have missed often, if enough others are there; count one round of their rest."""
        self._resting = {client: rounds - 1 for client, rounds in self._resting.items() if rounds > 0}
        others = [client for client in present if client not in self._resting]
        return others if len(others) >= self._num_wanted else present

    @property
    def _num_wanted(self) -> int:
        """``wanted``, or all members where some were removed since: nobody waits for them."""
        if self._keys is None:
            return self.wanted
        return min(self.wanted, len({client for client in self._keys.values() if client < self.num_clients}))

    def node_of(self, client_id: int) -> int | None:
        """Return the node that a client lives on, None where it is away."""
        node = self._nodes.get(client_id)
        return node if node in self._online else None

    def num_samples(self, client_id: int) -> int:
        """Return the number of samples that a client says it owns."""
        return int(self.descriptions.get(client_id, {}).get("samples", 0))

    def heard(self, client_id: int, reason: str) -> None:
        """Leave a client alone for a while if that is what it asks for, or if it has been silent three times in a row."""
        if reason == SILENT:
            self._count_silence(client_id)
            return
        self._strikes.pop(client_id, None)
        delay = self.retry_delay(reason)
        if delay is not None:
            self._paused[client_id] = time.monotonic() + delay

    def _count_silence(self, client_id: int) -> None:
        self._strikes[client_id] += 1
        if self._strikes[client_id] >= MOST_STRIKES:
            self._strikes[client_id] = 0
            self._resting[client_id] = REST_ROUNDS
            self._on_note(
                f"client {client_id} has missed {MOST_STRIKES} times in a row and is not asked in the next {REST_ROUNDS} rounds"
            )

    def _collect(self, nodes: Mapping[int, bytes]) -> None:
        if not self._asked:
            return
        for reply in self._grid.pull_messages(list(self._asked)):
            asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if asked is None:
                continue
            if reply.has_error():
                self._on_note(f"node {asked.node} did not say what it brings: {told_text(reply.error.reason, MOST_REASON)}")
                continue  # asked again at the next look
            client_id = None if self._keys is None else self._keys[nodes[asked.node]] if asked.node in nodes else None
            try:
                check_texts(reply.content)
                if (failure := failure_of(reply.content)) is not None:
                    self._refuse(client_id, asked.node, failure)
                    continue
                description = read_values(reply.content, "description")
                client_id = int(description["client"]) if client_id is None else client_id
            except UNREADABLE as error:
                self._refuse(client_id, asked.node, f"its description cannot be read ({told_text(error, MOST_REASON)})")
                continue
            if not 0 <= client_id < self.num_clients:
                self._refuse(None, asked.node, f"there is no client {client_id} in a federation of {self.num_clients}")
                continue
            self._nodes[client_id] = asked.node
            self._check_admission(client_id, description)
        for number, asked in list(self._asked.items()):
            if time.monotonic() - asked.since > QUERY_SECONDS:
                del self._asked[number]

    def _check_admission(self, client_id: int, description: Description) -> None:
        reason = self.admission_check(client_id, description)
        if reason is None:
            self.refused.pop(client_id, None)
            self.descriptions[client_id] = description
            return
        self.descriptions.pop(client_id, None)
        self.send_notice(client_id, f"left out: {reason}")
        self._refuse(client_id, self._nodes[client_id], reason)

    def _refuse(self, client_id: int | None, node: int, reason: str) -> None:
        delay = DAMAGED_SECONDS if DAMAGED in reason else self.retry_delay(reason)
        if delay is None:
            self._silent.add(node)
        else:
            self._later[node] = time.monotonic() + delay
        if client_id is not None:
            known = self.refused.get(client_id)
            self.refused[client_id] = reason
            if delay is not None and known is not None and self.retry_delay(known) is not None:
                return  # it was said before
        who = f"node {node}" if client_id is None else f"client {client_id}"
        self._on_note(f"{who} is left out: {reason}")
