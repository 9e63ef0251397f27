"""The door-keeper of the SuperLink."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("flwr")

from unisono.engines.flower.superlink import LocalOnly, is_allowed


def scope(path: str, client: str | None, server: str = "10.0.0.5") -> dict[str, Any]:
    return {"type": "http", "path": path, "client": (client, 1) if client else None, "server": (server, 9092)}


@pytest.mark.parametrize(
    ("path", "client", "allowed"),
    [
        ("/v1/fleet/pull-messages", "192.0.2.7", True),
        ("/health", "192.0.2.7", True),
        ("/v1/control/start-run", "192.0.2.7", False),
        ("/v1/control/register-node", "192.0.2.7", False),
        ("/v1/runtime/acquire-task", "192.0.2.7", False),
        ("/v1/fleetwood/x", "192.0.2.7", False),
        ("/docs", "192.0.2.7", False),
        ("/", None, False),
        ("/v1/control/start-run", "127.0.0.1", True),
        ("/v1/control/start-run", "::1", True),
        ("/v1/control/start-run", "10.0.0.5", True),
        ("/v1/runtime/acquire-task", "10.0.0.6", False),
    ],
)
def test_only_nodes_may_come_from_elsewhere(path: str, client: str | None, allowed: bool) -> None:
    assert is_allowed(scope(path, client)) is allowed


def test_a_request_that_is_not_allowed_gets_403_and_no_further() -> None:
    sent: list[dict[str, Any]] = []
    passed: list[str] = []

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        passed.append(scope["path"])

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    guard = LocalOnly(app)
    asyncio.run(guard(scope("/v1/control/start-run", "192.0.2.7"), None, send))
    assert sent[0]["status"] == 403
    assert passed == []
    asyncio.run(guard(scope("/v1/fleet/pull-messages", "192.0.2.7"), None, send))
    asyncio.run(guard({"type": "lifespan", "path": ""}, None, send))
    assert passed == ["/v1/fleet/pull-messages", ""]
