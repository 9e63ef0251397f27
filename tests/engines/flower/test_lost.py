"""Requests that got lost with a client's process."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from unisono.engines.flower.lost import LossDetectingGrid


class FakeGrid:
    """A grid with one node, which answers what it is told to."""

    def __init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.started = datetime.now(UTC) - timedelta(hours=1)
        self.sent: dict[str, Message] = {}
        self.answered: set[str] = set()

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=7, last_activated_at=self.started.isoformat())]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            numbers.append(str(len(self.sent)))
            message.metadata.__dict__["_message_id"] = numbers[-1]
            self.sent[numbers[-1]] = message
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [Message(RecordDict(), reply_to=self.sent[number]) for number in message_ids if number in self.answered]


def test_a_request_is_lost_once_a_restarted_node_answers_a_later_one() -> None:
    fake = FakeGrid()
    grid = LossDetectingGrid(fake, seconds=0)
    (number,) = grid.push_messages([Message(RecordDict(), 7, "train")])
    for _ in range(3):
        assert grid.pull_messages([number]) == []
    assert len(fake.sent) == 1  # the node has run all the time: it is not asked
    fake.started = datetime.now(UTC) + timedelta(seconds=1)
    for _ in range(3):
        assert grid.pull_messages([number]) == []
    assert len(fake.sent) == 2  # it may have taken the request after its start: one ping, no more
    fake.answered.add("1")
    assert grid.pull_messages([number]) == []
    (reply,) = grid.pull_messages([number])
    assert reply.has_error()
    assert "restarted" in reply.error.reason
    assert reply.metadata.reply_to_message_id == number
    assert grid.pull_messages([number]) == []


def test_an_answer_that_comes_beside_the_pings_counts() -> None:
    fake = FakeGrid()
    grid = LossDetectingGrid(fake, seconds=0)
    (number,) = grid.push_messages([Message(RecordDict(), 7, "train")])
    fake.started = datetime.now(UTC) + timedelta(seconds=1)
    assert grid.pull_messages([number]) == []
    fake.answered.add("1")
    assert grid.pull_messages([number]) == []
    fake.answered.add("0")
    (reply,) = grid.pull_messages([number])
    assert not reply.has_error()
