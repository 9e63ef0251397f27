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

PULLS = {"/v1/fleet/pull-messages": 5.0, "/v1/runtime/pull-messages": 1.0}
"""Seconds that a request for messages waits: a node's, which has nothing else to do, and that of the server's run."""
PUSHES = {
    "/v1/runtime/push-messages": "/v1/fleet/pull-messages",
    "/v1/runtime/push-object": "/v1/fleet/pull-messages",
    "/v1/fleet/push-messages": "/v1/runtime/pull-messages",
    "/v1/fleet/push-object": "/v1/runtime/pull-messages",
}
"""Requests after which those who wait look again."""
SETTLE = 0.03
"""Seconds without another part of a message after which it is taken to be complete."""
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class LongPoll:
    """ASGI middleware in which requests for messages wait for news, one of every key and never longer than ``PULLS``.

    Args:
        app: what answers.
        settle: see ``SETTLE``.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], settle: float = SETTLE) -> None:
        self._app = app
        self._settle = settle
        self._news = {path: asyncio.Event() for path in PULLS}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._waiting: set[tuple[str, bytes]] = set()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass a request on; answer one for messages when there are some, or when it has waited for long enough."""
        path = str(scope.get("path", "")) if scope["type"] == "http" else ""
        if path not in PULLS:
            await self._app(scope, receive, send)
            if path in PUSHES:
                self._announce(PUSHES[path])
            return
        who = (path, dict(scope["headers"]).get(KEY_HEADER, b""))
        if who in self._waiting:  # a key has no use for two
            await self._app(scope, receive, send)
            return
        self._waiting.add(who)
        try:
            await self._answer(path, scope, receive, send)
        finally:
            self._waiting.discard(who)

    async def _answer(self, path: str, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        deadline = time.monotonic() + PULLS[path]
        body = await receive()
        while True:
            news, answer = self._news[path], _Answer()
            await self._app(dict(scope), _replayed(body, receive), answer)
            left = deadline - time.monotonic()
            if not answer.is_empty or left <= 0:
                await answer.pass_on(send)
                return
            if not await _waited(news, receive, left):
                return

    def _announce(self, path: str) -> None:
        """Wake those who wait once no more parts have come for a moment."""
        if (timer := self._timers.get(path)) is not None:
            timer.cancel()
        self._timers[path] = asyncio.get_running_loop().call_later(self._settle, self._wake, path)

    def _wake(self, path: str) -> None:
        news, self._news[path] = self._news[path], asyncio.Event()
        news.set()


class _Answer:
    """What an app sends, kept until it is known whether it says anything."""

    def __init__(self) -> None:
        self._sent: list[MutableMapping[str, Any]] = []

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        self._sent.append(message)

    @property
    def is_empty(self) -> bool:
        """Whether it is a message without a field: Flower's way to say that there is nothing."""
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
