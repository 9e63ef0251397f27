"""A federation in one process: the real server loop, the real client code, and a grid of Flower's kind between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from unisono.core.config import make_section, merge
from unisono.deploy.client import DeployedClient
from unisono.deploy.directories import CLIENT_FILE, ClientConfig, ClientDirectory, DeployServerConfig, write_config
from unisono.deploy.init import create_federation
from unisono.deploy.server import ServerInfo
from unisono.engines.flower.client_app import make_client_app

POLICY: dict[str, Any] = {
    "allow": {"metrics": ["all"]},
    "require": {"min_samples": 1, "statistics": "exact", "own_randomness": False},
    "bounds": {"min_batch_size": 2, "min_drawn": 2},
    "log": {"errors": "short"},
}
"""A policy for small samples. With the run's seed as the source of randomness, results can be compared bit by bit."""
SMALL = (
    "model.options.widths=[4]", "model.backbone=convnet", "model.norm=group", "model.groups=2", "method.projection_dim=8",
    "training.batch_size=8", "training.local_epochs=1", "evaluation.probe_every=0", "compression.bits=8",
)  # fmt: skip
"""A run of some milliseconds a round, with local states: the error feedback of compression."""


def make_clients(path: Path, data: Path, num_clients: int) -> None:
    """Write the directories of a federation and some samples for each client.

    Args:
        path: of the federation; made here.
        data: where samples go, which outlive the directories.
        num_clients: how many.
    """
    create_federation(path, num_clients, policy={})
    data.mkdir(parents=True, exist_ok=True)
    for number in range(num_clients):
        samples = np.random.default_rng(number).integers(0, 256, (num_samples(number), 8, 8), dtype=np.uint8)
        np.savez(data / f"{number}.npz", x=samples)
        file = path / f"client-{number}" / CLIENT_FILE
        own = ClientDirectory.open(file.parent).config.model_dump(mode="json")
        values = merge(merge(own, POLICY), {"data": str(data / f"{number}.npz"), "device": "cpu"})
        write_config(file, make_section(ClientConfig, values, "client"))


def num_samples(number: int) -> int:
    """Return how many samples a client has."""
    return 16 + 8 * number


def open_client(path: Path, number: int) -> DeployedClient:
    """Start a client of a federation, in this process."""
    return DeployedClient(ClientDirectory.open(path / f"client-{number}"))


def server_info(num_clients: int) -> ServerInfo:
    """Return a server that believes what clients say."""
    return ServerInfo(DeployServerConfig(insecure=True, num_clients=num_clients, start_timeout=30.0), None)


class Everybody:
    """Members of a federation: all clients are there, and can be asked again whatever they say.

    Args:
        num_clients: how many.
        num_samples: returns what a client owns.
    """

    def __init__(self, num_clients: int, num_samples: Callable[[int], int] = num_samples) -> None:
        self.num_clients = num_clients
        self.num_samples = num_samples

    def available(self) -> Sequence[int] | None:
        """Return None: nobody is away."""
        return None

    def node_of(self, client_id: int) -> int:
        """Return the node of a client."""
        return client_id + 1

    def heard(self, client_id: int, reason: str) -> None:
        """Do nothing."""


class LocalGrid:
    """Flower's grid as a server sees it; clients answer at once, in the same process.

    Args:
        clients: node n is client n - 1.
    """

    def __init__(self, clients: Sequence[DeployedClient]) -> None:
        self.clients = list(clients)
        self._sent: dict[str, Message] = {}
        self._number = 0
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are connected."""
        return [number + 1 for number in range(len(self.clients))]

    def get_nodes(self) -> list[NodeInfo]:
        """Return the nodes that are connected, with their keys."""
        return [NodeInfo(node_id=node, public_key=b"") for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages to clients and return their numbers."""
        return [self._take(message) for message in messages]

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        """Return the answers to messages of these numbers, as far as there are any."""
        asked = [self._sent.pop(number, None) for number in numbers]
        return [self.answer(message) for message in asked if message is not None]

    def answer(self, message: Message) -> Message:
        """Let a client answer a message."""
        client = self.clients[message.metadata.dst_node_id - 1]
        app = make_client_app(lambda node_config: client)
        return app(message, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}))

    def _take(self, message: Message) -> str:
        self._number += 1
        number = f"message {self._number}"
        message.metadata.__dict__["_message_id"] = number
        self._sent[number] = message
        return number
