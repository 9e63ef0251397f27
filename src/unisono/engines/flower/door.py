"""The door of a SuperLink: it decides by the headers of a request whether a byte of its body is read.

A SuperLink serves three APIs on one port. Fleet is for nodes: their key must be known and their signature must hold
before the body is read. Control (start and stop runs, admit nodes) and Runtime (for the processes of a run) are for the
server's own machine; Control needs a token on top, since a container can make every caller look local.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

Scope = MutableMapping[str, Any]
KIBIBYTE, MEBIBYTE = 2**10, 2**20
FLEET = "/v1/fleet/"
SMALL = 64 * KIBIBYTE
CAPS = {
    "push-object": 6 * MEBIBYTE,  # Flower cuts arrays into parts of 5 MiB
    "push-messages": MEBIBYTE,
    **dict.fromkeys(
        (
            "register-node", "activate-node", "deactivate-node", "unregister-node", "send-node-heartbeat", "pull-messages",
            "get-run", "get-fab", "pull-object", "confirm-message-received",
        ),
        SMALL,
    ),
}  # fmt: skip
"""Bytes that the body of a node's request may have, by the last part of its path."""
LOCAL_CAP = 16 * MEBIBYTE
TOKEN_HEADER = b"unisono-control-token"
KEY_HEADER, TIME_HEADER, SIGNATURE_HEADER = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
OLDEST, NEWEST = 305.0, -5.0
"""Seconds by which a signed time may differ from this clock, as Flower has it."""
MOST_ADDRESSES = 1024


@dataclass(frozen=True)
class Limits:
    """Limits of a door.

    Args:
        chunk_seconds: time for each part of a body.
        body_seconds: time for a whole body.
        rate: requests per second of one key; those above it wait.
        burst: requests that a key may send at once.
        waiting: requests of one key that may wait at once.
        refusals: per minute, address and no known key; then all such requests get 429 for a minute.
    """

    chunk_seconds: float = 30.0
    body_seconds: float = 120.0
    rate: float = 50.0
    burst: float = 200.0
    waiting: int = 32
    refusals: int = 10


class RequestRefusedError(Exception):
    """A request that is answered with a status and a sentence, and the connection closed."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Bucket:
    """Requests that one key may send now.

    Args:
        limits: rate and burst.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._tokens, self._at = limits.burst, time.monotonic()
        self._waiting = 0

    async def take(self) -> None:
        """Take a token; wait for it where there is none."""
        now = time.monotonic()
        self._tokens = min(self._limits.burst, self._tokens + (now - self._at) * self._limits.rate)
        self._at = now
        if self._tokens < 1 and self._waiting >= self._limits.waiting:
            raise RequestRefusedError(429, "too many requests of this key")
        self._tokens -= 1
        if self._tokens < 0:
            self._waiting += 1
            try:
                await asyncio.sleep(-self._tokens / self._limits.rate)
            finally:
                self._waiting -= 1


class Door:
    """ASGI middleware that stands before all of a SuperLink's APIs.

    Args:
        app: what it stands before.
        keys: return the public keys (PEM) that may send requests; None where nodes have none (an insecure federation).
        token: what a request to the Control API must carry; None asks for none.
        limits: sizes, times and rates.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        keys: Callable[[], Collection[bytes]] | None,
        token: str | None,
        limits: Limits = Limits(),  # noqa: B008  (it is frozen)
    ) -> None:
        self._app = app
        self._keys = keys
        self._token = None if token is None else token.encode()
        self._limits = limits
        self._buckets: dict[bytes, Bucket] = {}
        self._refused: OrderedDict[str, tuple[float, int]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            cap = await self._admitted(scope)
            body = await self._body(scope, receive, cap)
        except RequestRefusedError as refusal:
            await _refuse(send, refusal)
            return
        await self._app(scope, _replayed(body, receive), send)

    async def _admitted(self, scope: Scope) -> int:
        """Return how large the body of a request may be; raise RequestRefusedError if the request is not admitted."""
        path, headers = str(scope.get("path", "")), dict(scope.get("headers", ()))
        if scope["type"] != "http":
            raise RequestRefusedError(403, "only HTTP")
        if path == "/health":
            return 0
        if path.startswith(FLEET):
            name = path.removeprefix(FLEET)
            if name not in CAPS or scope.get("method") != "POST":
                raise RequestRefusedError(404, "no such call")
            if self._keys is not None:
                await self._check_node(scope, headers, self._keys())
            return CAPS[name]
        if not is_local(scope):
            raise RequestRefusedError(403, "only on the server's own machine")
        is_control = path.startswith("/v1/control/") and self._token is not None
        if is_control and not hmac.compare_digest(headers.get(TOKEN_HEADER, b""), self._token or b""):
            raise RequestRefusedError(403, "only with the server's control.token")
        return LOCAL_CAP

    async def _check_node(self, scope: Scope, headers: dict[bytes, bytes], keys: Collection[bytes]) -> None:
        """Raise RequestRefusedError unless a known key has signed the time of the request."""
        client = scope.get("client")
        address = str(client[0]) if client else ""
        key = _decoded(headers.get(KEY_HEADER, b""))
        if key not in keys:
            raise RequestRefusedError(*self._stranger(address))
        if not is_signed(key, headers.get(TIME_HEADER, b""), _decoded(headers.get(SIGNATURE_HEADER, b""))):
            raise RequestRefusedError(*self._stranger(address))
        await self._buckets.setdefault(key, Bucket(self._limits)).take()

    def _stranger(self, address: str) -> tuple[int, str]:
        """Return what a request without a valid key is answered; a known key is never blocked for its address."""
        now = time.monotonic()
        since, number = self._refused.pop(address, (now, 0))
        since, number = (now, 0) if now - since > 60 else (since, number)
        self._refused[address] = (since, number + 1)
        if len(self._refused) > MOST_ADDRESSES:
            self._refused.popitem(last=False)
        return (401, "unknown key") if number < self._limits.refusals else (429, "too many refused requests")

    async def _body(self, scope: Scope, receive: Callable[..., Any], cap: int) -> bytes:
        """Return the body of a request; raise RequestRefusedError if it is too large or too slow."""
        headers = dict(scope.get("headers", ()))
        if scope.get("method") in ("GET", "HEAD"):
            return b""
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or b"transfer-encoding" in headers:
            raise RequestRefusedError(411, "a content-length is required")
        if int(length) > cap:
            raise RequestRefusedError(413, f"at most {cap} bytes")
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                more = True
                while more:
                    message = await asyncio.wait_for(receive(), self._limits.chunk_seconds)
                    if message["type"] == "http.disconnect":
                        raise RequestRefusedError(400, "the connection was closed")
                    parts.append(message.get("body", b""))
                    more = message.get("more_body", False)
        except TimeoutError:
            raise RequestRefusedError(408, "the body came too slowly") from None
        return b"".join(parts)


def is_local(scope: Scope) -> bool:
    """Return whether a request comes from this machine."""
    client, server = scope.get("client"), scope.get("server")
    if not client:
        return False
    # A connection whose two ends have the same address never left the machine.
    return _is_loopback(client[0]) or (server is not None and client[0] == server[0])


def is_signed(key: bytes, moment: bytes, signature: bytes) -> bool:
    """Return whether a key has signed this time, as Flower's nodes do, and whether it is now.

    Args:
        key: public, PEM.
        moment: in ISO format.
        signature: ECDSA with SHA-256.
    """
    try:
        at = datetime.fromisoformat(moment.decode("ascii"))
        age = (datetime.now(UTC) - at).total_seconds()
        public = load_pem_public_key(key)
        if not isinstance(public, ec.EllipticCurvePublicKey) or not NEWEST < age < OLDEST:
            return False
        public.verify(signature, moment, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _decoded(value: bytes) -> bytes:
    try:
        return b64decode(value, validate=True)
    except ValueError:
        return b""


async def _refuse(send: Callable[..., Any], refusal: RequestRefusedError) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": str(refusal).encode()})


def _replayed(body: bytes, receive: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return what the app reads: the body, and then whatever the server says."""
    is_read = False

    async def read() -> Any:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read
