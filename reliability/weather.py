"""A grid that does not help: it loses, delays, repeats, reorders and damages messages, all from one source of chance."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Error, Message
from flwr.proto.node_pb2 import NodeInfo

from reliability.federation import LocalGrid, open_client


class ServerDownError(Exception):
    """The server's process is gone."""


class Clock:
    """Time that passes only when somebody sleeps; it may jump."""

    def __init__(self, rng: random.Random, jumps: float = 0.0) -> None:
        self.now = 1000.0
        self._rng = rng
        self._jumps = jumps

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        jump = self._rng.choice((5.0, 60.0, 3600.0)) if self._rng.random() < self._jumps else 0.0
        self.now += max(seconds, 0.5) + jump


@dataclass(frozen=True)
class Weather:
    """Probabilities of one schedule."""

    lost: float
    late: float
    repeated: float
    damaged: float
    unsent: float
    away: float
    client_restart: float
    server_restart: float
    jump: float

    @staticmethod
    def draw(rng: random.Random) -> Weather:
        """Draw a schedule's; each trouble is absent in half of them."""
        most = (0.3, 0.5, 0.3, 0.2, 0.1, 0.2, 0.2, 0.02, 0.05)
        return Weather(*(rng.choice((0.0, limit * rng.random())) for limit in most))


class ChaosGrid(LocalGrid):
    """A grid that loses, delays, repeats, reorders and damages messages.

    Args:
        path: the federation's directories.
        rng: decides.
        weather: how much of what.
        clock: the time.
        num_clients: how many there are.
    """

    def __init__(self, path: Path, rng: random.Random, weather: Weather, clock: Clock, num_clients: int) -> None:
        super().__init__([open_client(path, number) for number in range(num_clients)])
        self._path = path
        self._rng = rng
        self._weather = weather
        self._clock = clock
        self._requests: list[tuple[float, int, Message]] = []
        self._replies: list[tuple[float, int, str, Message]] = []
        self._order = 0
        self._away: dict[int, float] = {}
        self.updates_sent: Counter[int] = Counter()

    def get_nodes(self) -> list[NodeInfo]:
        for node in self.get_node_ids():
            if self._happens(self._weather.away):
                self._away[node] = self._clock.now + 30 * self._rng.random()
        present = [node for node in self.get_node_ids() if self._away.get(node, 0.0) <= self._clock.now]
        return [NodeInfo(node_id=node, public_key=b"") for node in present]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            if self._happens(self._weather.unsent):
                numbers.append("")
                continue
            number = self._take(message)
            numbers.append(number)
            for _ in range(self._copies()):
                self._requests.append((self._arrival(), self._next(), message))
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        if self._happens(self._weather.server_restart):
            raise ServerDownError
        self._deliver()
        asked = set(numbers)
        due = sorted(part for part in self._replies if part[0] <= self._clock.now and part[2] in asked)
        self._replies = [part for part in self._replies if part not in due]
        return [reply for _, _, _, reply in due]

    def _deliver(self) -> None:
        """Let clients answer the requests that have arrived, in order of arrival."""
        due = sorted((part for part in self._requests if part[0] <= self._clock.now), key=lambda part: part[:2])
        self._requests = [part for part in self._requests if part[0] > self._clock.now]
        for _, _, message in due:
            client = message.metadata.dst_node_id - 1
            if self._happens(self._weather.client_restart):
                self.clients[client] = open_client(self._path, client)
            reply = self.answer(self._damage(message))
            self.updates_sent[client] += "update" in reply.content
            for _ in range(self._copies()):
                found = self._damage(reply)
                if self._happens(self._weather.damaged / 4):
                    found = Message(Error(1, "chaos"), reply_to=message)
                self._replies.append((self._arrival(), self._next(), message.metadata.message_id, found))

    def _damage(self, message: Message) -> Message:
        """Return the message, or a copy in which bytes have changed."""
        if not self._happens(self._weather.damaged):
            return message
        damaged = copy.deepcopy(message)
        record = self._rng.choice(list(damaged.content.values()))
        name = self._rng.choice(list(record))
        value = record[name]
        if isinstance(value, bytes):
            position = self._rng.randrange(len(value))
            flipped = bytes([value[position] ^ self._rng.randrange(1, 256)])
            record[name] = value[:position] + flipped + value[position + 1 :]
        elif isinstance(value, str):
            position = self._rng.randrange(len(value)) if value else 0
            flipped = chr(ord(value[position]) ^ 1) if value else "}"
            record[name] = value[:position] + self._rng.choice((flipped + value[position + 1 :], ""))
        return damaged

    def _copies(self) -> int:
        if self._happens(self._weather.lost):
            return 0
        return 2 if self._happens(self._weather.repeated) else 1

    def _arrival(self) -> float:
        return self._clock.now + (self._rng.expovariate(1 / 15) if self._happens(self._weather.late) else 0.0)

    def _happens(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _next(self) -> int:
        self._order += 1
        return self._order
