"""The ClientApp of ``flwr run``: a client with data of its own, or a simulated one."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from unisono.backends import build_worker_setup
from unisono.deploy.client import DeployedClient
from unisono.deploy.directories import ClientConfig, ClientDirectory
from unisono.engines.flower.client_app import ClientHandler, make_client_app
from unisono.engines.flower.simulated_client import SimulatedClient


def open_handler(node_config: dict[str, bool | float | int | str]) -> ClientHandler:
    """Return the handler of a node's messages.

    Args:
        node_config: ``directory`` (a client's, from ``unisono deploy init``), or ``data`` and ``partition-id`` for a SuperNode
            that was started by hand; anything else is a node of a simulation.
    """
    return _open(
        str(node_config.get("directory", "")), str(node_config.get("data", "")), int(node_config.get("partition-id", 0))
    )


@lru_cache(maxsize=4)
def _open(directory: str, data: str, client_id: int) -> ClientHandler:
    if directory:
        return DeployedClient(ClientDirectory.open(Path(directory)))
    if data:
        config = ClientConfig(client_id=client_id, server="", insecure=True, data=str(Path(data).resolve()))
        return DeployedClient(ClientDirectory(Path(f"unisono-client-{client_id}").resolve(), config))
    return SimulatedClient(build_worker_setup)


app = make_client_app(open_handler)
