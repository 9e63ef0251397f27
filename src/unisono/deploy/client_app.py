"""The ClientApp of ``flwr run``: a client with data of its own, or a simulated one."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from unisono.backends import open_workshop
from unisono.deploy.desk import ClientDesk
from unisono.deploy.layout import ClientConfig, ClientDirectory
from unisono.engines.flower.client_app import Desk, make_client_app
from unisono.engines.flower.simulated_desk import SimulatedDesk


def open_desk(node_config: dict[str, bool | float | int | str]) -> Desk:
    """The desk of a node.

    Args:
        node_config: ``directory`` (a client's, from ``unisono deploy init``), or ``data`` and ``partition-id`` for a SuperNode
            that was started by hand; anything else is a node of a simulation.
    """
    return _open(
        str(node_config.get("directory", "")), str(node_config.get("data", "")), int(node_config.get("partition-id", 0))
    )


@lru_cache(maxsize=4)
def _open(directory: str, data: str, client_id: int) -> Desk:
    if directory:
        return ClientDesk(ClientDirectory.open(Path(directory)))
    if data:
        config = ClientConfig(client_id=client_id, server="", insecure=True, data=str(Path(data).resolve()))
        return ClientDesk(ClientDirectory(Path(f"unisono-client-{client_id}").resolve(), config))
    return SimulatedDesk(open_workshop)


app = make_client_app(open_desk)
