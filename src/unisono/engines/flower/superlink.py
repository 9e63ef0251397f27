"""SuperLink that answers other machines only if they are nodes; all other requests must come from its own machine.

A SuperLink serves three APIs on one port: Fleet (for nodes, which prove who they are by their keys), Control (start and stop
runs, admit nodes) and Runtime (for the processes of a run). On the last two Flower asks nobody who he is, so they would be open
to whoever reaches the port.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from unisono.core.errors import UserError
from unisono.engines.flower.internals import serve_superlink

Scope = MutableMapping[str, Any]
OPEN_TO_NODES = ("/v1/fleet/", "/health")


class LocalOnly:
    """ASGI middleware that refuses requests from other machines, except those of nodes.

    Args:
        app: what it stands before.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        """Pass a request on, or answer 403."""
        if scope["type"] in ("http", "websocket") and not is_allowed(scope):
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": b"only on the server's own machine"})
            return
        await self._app(scope, receive, send)


def is_allowed(scope: Scope) -> bool:
    """Return whether a request is a node's, or comes from this machine."""
    path = str(scope.get("path", ""))
    if any(path == door.rstrip("/") or path.startswith(door) for door in OPEN_TO_NODES):
        return True
    client, server = scope.get("client"), scope.get("server")
    if not client:
        return False
    # A connection whose two ends have the same address never left the machine.
    return _is_loopback(client[0]) or (server is not None and client[0] == server[0])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def main(arguments: Sequence[str]) -> None:
    """Serve until the process is ended, or ends it with a sentence if the guard cannot be put up.

    Args:
        arguments: those of ``flower-superlink``.
    """
    try:
        serve_superlink(arguments, LocalOnly)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
