"""A Flower grid without Flower's processes: every message is answered here, by a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

Reply = Callable[[Message], RecordDict | Error | None]


@dataclass
class InstantGrid:
    """Answers in the reverse order of asking; None is no answer at all."""

    reply: Reply
    nodes: dict[int, bytes] = field(default_factory=dict)
    sent: dict[str, Message] = field(default_factory=dict)
    pushed: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=key) for node, key in self.nodes.items()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = f"message {len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = number
            self.sent[number] = message
            self.pushed.append(message)
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        replies: list[Message] = []
        for number in reversed(list(numbers)):
            message = self.sent.get(number)
            content: Any = None if message is None else self.reply(message)
            if message is not None and content is not None:
                del self.sent[number]
                replies.append(Message(content, reply_to=message))
        return replies
