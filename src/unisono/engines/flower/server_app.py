"""Server side of Flower: a ServerApp that passes on its grid and its config."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from unisono.engines.flower.messages import read_values, values_content

Main = Callable[[Grid, Mapping[str, Any], int], None]


def make_server_app(main: Main) -> ServerApp:
    """Return a ServerApp.

    Args:
        main: called with the grid, the run's config and Flower's number of the run.
    """
    app = ServerApp()

    @app.main()
    def run(grid: Grid, context: Context) -> None:
        main(grid, dict(context.run_config), context.run_id)

    return app


def is_simulation(grid: Grid, seconds: float = 120.0) -> bool:
    """Return whether the nodes of a grid are simulated; asks one of them."""
    deadline = time.monotonic() + seconds
    while not (nodes := list(grid.get_node_ids())) and time.monotonic() < deadline:
        time.sleep(0.2)
    if not nodes:
        return False
    replies = grid.send_and_receive(
        [Message(values_content("question", {"are you simulated": True}), nodes[0], "query", ttl=seconds)], timeout=seconds
    )
    for reply in replies:
        if not reply.has_error() and "description" in reply.content.config_records:
            return bool(read_values(reply.content, "description").get("simulated", False))
    return False


def settled_nodes(grid: Grid) -> int:
    """Return the number of nodes once no more come for a second."""
    before = -1
    while (now := len(list(grid.get_node_ids()))) != before:
        before = now
        time.sleep(1.0)
    return now
