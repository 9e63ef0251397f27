"""Long polls: a request for messages waits until there is one, so that whoever asks hears of it at once and asks seldom.

Flower's SuperLink answers at once that there is nothing. A masked sum sends five messages to every client of a round, and each
would wait for the next look of the client, and its answer for the next look of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from unisono.engines.flower.door import KEY_HEADER

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"
PULL, PUSHES = "pull-messages", ("push-messages", "push-object")
SECONDS = {FLEET: 5.0, RUNTIME: 1.0}
"""Time that a request for messages waits: a node's, which has nothing else to do, and that of the server's run."""
OTHER = {FLEET: RUNTIME, RUNTIME: FLEET}
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class LongPoll:
    """ASGI middleware in which requests for messages wait for news, one of every key and never longer than ``SECONDS``.

    A message can be seen before its parts have come. So there is news when its sender asks for messages itself: nodes and the
    run do so as soon as they have sent everything.

    Args:
        app: what answers.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._news = {side: asyncio.Event() for side in OTHER}
        self._sending: dict[str, set[bytes]] = {side: set() for side in OTHER}
        self._waiting: set[tuple[str, bytes]] = set()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass a request on; answer one for messages when there are some, or when it has waited for long enough."""
        path = str(scope.get("path", "")) if scope["type"] == "http" else ""
        side = next((side for side in OTHER if path.startswith(side)), "")
        name, key = path.removeprefix(side), dict(scope.get("headers", ())).get(KEY_HEADER, b"")
        if side and name in PUSHES:
            self._sending[side].add(key)
        if not side or name != PULL:
            await self._app(scope, receive, send)
            return
        if key in self._sending[side]:
            self._sending[side].remove(key)
            self._announce(OTHER[side])
        if (side, key) in self._waiting:  # a key has no use for two
            await self._app(scope, receive, send)
            return
        self._waiting.add((side, key))
        try:
            await self._answer(side, scope, receive, send)
        finally:
            self._waiting.discard((side, key))

    async def _answer(self, side: str, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        deadline = time.monotonic() + SECONDS[side]
        body = await receive()
        while True:
            news, left = self._news[side], deadline - time.monotonic()
            # Nodes do not look while the run sends: they would ask for parts that have not come, all of them at once.
            if side == RUNTIME or left <= 0 or not self._sending[RUNTIME]:
                answer = _Answer()
                await self._app(dict(scope), _replayed(body, receive), answer)
                left = deadline - time.monotonic()
                if not answer.is_empty or left <= 0:
                    await answer.pass_on(send)
                    return
            if not await _waited(news, receive, left):
                return

    def _announce(self, side: str) -> None:
        """Wake those who wait."""
        news, self._news[side] = self._news[side], asyncio.Event()
        news.set()


class _Answer:
    """Answer of an app, kept until it is known whether it says anything."""

    def __init__(self) -> None:
        self._sent: list[MutableMapping[str, Any]] = []

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        self._sent.append(message)

    @property
    def is_empty(self) -> bool:
        """True for a message without a field, Flower's way to say that there is nothing."""
        return any(part.get("status") == 200 for part in self._sent) and not any(part.get("body") for part in self._sent)

    async def pass_on(self, send: Send) -> None:
        """Send everything."""
        for part in self._sent:
            await send(part)


async def _waited(news: asyncio.Event, receive: Receive, seconds: float) -> bool:
    """Wait for news; return False if the caller has gone, who must not be given a message that nobody else would get."""
    parts = [asyncio.ensure_future(news.wait()), asyncio.ensure_future(receive())]
    try:
        await asyncio.wait(parts, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return not parts[1].done()
    finally:
        for part in parts:
            part.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await part


def _replayed(body: MutableMapping[str, Any], receive: Receive) -> Receive:
    """Return what the app reads: the body, and then whatever the server says."""
    is_read = False

    async def read() -> MutableMapping[str, Any]:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return body

    return read
