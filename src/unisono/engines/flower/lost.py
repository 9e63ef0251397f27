"""Requests that got lost with a client's process: found by a second message, so that nobody waits for them.

A SuperNode that was restarted after it took a request never answers it, and Flower does not send it again. A SuperNode
handles one message after the other, so a later message that is answered first says that the request is gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from flwr.app import Error, Message

from unisono.engines.flower.messages import values_content

PING_SECONDS = 600.0
LOST = 1
"""Code of the error that stands for a lost answer; Flower's for an unknown one."""


@dataclass
class _Sent:
    message: Message
    node: int
    at: datetime
    ping: str | None = None
    is_lost: bool = False


class LossDetectingGrid:
    """A Flower grid that answers for nodes which were restarted: with an error, as soon as it is certain.

    Args:
        grid: Flower's.
        seconds: between two looks for restarted nodes.
    """

    def __init__(self, grid: Any, seconds: float = 3.0) -> None:
        self._grid = grid
        self._seconds = seconds
        self._looked = 0.0
        self._sent: dict[str, _Sent] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, and remember when."""
        listed, now = list(messages), datetime.now(UTC)
        numbers = list(self._grid.push_messages(listed))
        for message, number in zip(listed, numbers, strict=False):  # Flower takes none of them if they are too large
            if number and message.metadata.message_type != "query":
                self._sent[number] = _Sent(message, message.metadata.dst_node_id, now)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers that have come, and errors in place of those that cannot come."""
        wanted = list(message_ids)
        replies = list(self._grid.pull_messages(wanted))
        for reply in replies:
            self._sent.pop(reply.metadata.reply_to_message_id, None)
        waiting = {number: self._sent[number] for number in wanted if number in self._sent}
        lost = [self._error(number, self._sent.pop(number)) for number, sent in waiting.items() if sent.is_lost]
        if waiting and time.monotonic() - self._looked >= self._seconds:
            self._looked = time.monotonic()
            self._look(waiting)
        return [*replies, *lost]

    def _look(self, waiting: dict[str, _Sent]) -> None:
        """Ask restarted nodes a small question each, and mark the requests whose node has answered it."""
        started = {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}
        for sent in waiting.values():
            since = started.get(sent.node)
            if sent.ping is None and since and datetime.fromisoformat(since) > sent.at:
                ping = Message(values_content("question", {"ping": True}), sent.node, "query", ttl=PING_SECONDS)
                sent.ping = next(iter(self._grid.push_messages([ping])), None)
        asked = {sent.ping: sent for sent in waiting.values() if sent.ping}
        for reply in self._grid.pull_messages(list(asked)) if asked else ():
            found = asked.get(reply.metadata.reply_to_message_id)
            if found is not None:
                # An answer to the request itself that came in this moment is read first, at the next pull.
                found.is_lost = True

    def _error(self, number: str, sent: _Sent) -> Message:
        sent.message.metadata.__dict__["_message_id"] = number  # a message does not carry its own
        return Message(Error(LOST, "the client was restarted while it worked on this"), reply_to=sent.message)
