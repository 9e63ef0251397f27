"""The door of the SuperLink, in one process and on a real port."""

from __future__ import annotations

import asyncio
import datetime
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

import psutil
import uvicorn
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fastapi import HTTPException

from tests.attacks import attack
from unisono.engines.flower.door import CAPS, MEBIBYTE, TOKEN_HEADER, Door, Limits
from unisono.engines.flower.handlers import UVICORN_LIMITS, only_own_replies, only_with_room

OWN, STRANGER = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
TOKEN = "ab" * 32
PULL = "/v1/fleet/pull-messages"


def public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def signed(key: ec.EllipticCurvePrivateKey, age: float = 0.0, claimed: bytes | None = None) -> dict[str, str]:
    """The headers of a node."""
    moment = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)).isoformat()
    signature = key.sign(moment.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": b64encode(claimed or public(key)).decode(),
        "flwr-timestamp": moment,
        "flwr-signature": b64encode(signature).decode(),
    }


class App:
    """What stands behind the door: it counts the bytes that it gets."""

    def __init__(self) -> None:
        self.got: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.got.append(len((await receive())["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"in"})


class Knocker:
    """Sends requests to a door, and counts what it reads of their bodies."""

    def __init__(self, limits: Limits = Limits(), insecure: bool = False) -> None:  # noqa: B008
        self.app = App()
        self.door = Door(self.app, None if insecure else lambda: {public(OWN)}, TOKEN, limits)
        self.read = 0

    def __call__(
        self,
        path: str,
        headers: dict[str, str] | None = None,
        client: str | None = "192.0.2.7",
        body: bytes = b"",
        length: int | None = -1,
        pause: float = 0.0,
        method: str = "POST",
    ) -> int:
        length = len(body) if length == -1 else length
        given = {**(headers or {}), **({} if length is None else {"content-length": str(length)})}
        scope = {
            "type": "http", "method": method, "path": path, "client": (client, 1) if client else None,
            "server": ("10.0.0.5", 9092), "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(pause)
            self.read += len(body)
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(self.door(scope, receive, send))
        return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("path", "client", "status"),
    [
        ("/health", "192.0.2.7", 200),
        ("/v1/control/start-run", "192.0.2.7", 403),
        ("/v1/control/register-node", "192.0.2.7", 403),
        ("/v1/runtime/acquire-task", "192.0.2.7", 403),
        ("/v1/fleetwood/x", "192.0.2.7", 403),
        ("/v1/fleet/x", "192.0.2.7", 404),
        ("/docs", "192.0.2.7", 403),
        ("/", None, 403),
        ("/v1/runtime/acquire-task", "127.0.0.1", 200),
        ("/v1/runtime/acquire-task", "10.0.0.6", 403),
    ],
)
def test_only_nodes_may_come_from_elsewhere(path: str, client: str | None, status: int) -> None:
    assert Knocker()(path, client=client) == status


@attack("B6", "Calls the Control API from an address that looks local (a rootless container)", "refused without the token")
@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "10.0.0.5"])
def test_control_needs_the_token_from_every_address(client: str) -> None:
    knock = Knocker()
    header = TOKEN_HEADER.decode()
    assert knock("/v1/control/start-run", client=client, body=b"app") == 403
    assert knock("/v1/control/start-run", {header: "ab" * 31}, client, b"app") == 403
    assert knock.read == 0
    assert knock("/v1/control/start-run", {header: TOKEN}, client, b"app") == 200
    assert knock("/v1/control/start-run", {header: TOKEN}, "192.0.2.7", b"app") == 403


@attack("B3", "Sends bodies without a key, with a foreign key, an old or a false signature", "refused; no byte is read")
def test_a_body_is_read_only_of_a_known_key_that_has_signed() -> None:
    knock = Knocker(Limits(refusals=100))
    body = bytes(MEBIBYTE)
    push = "/v1/fleet/push-messages"
    for headers in (
        {},
        {"flwr-public-key": "no base64"},
        signed(STRANGER),
        signed(STRANGER, claimed=public(OWN)),
        signed(OWN, age=400),
        signed(OWN, age=-60),
        {**signed(OWN), "flwr-timestamp": "yesterday"},
        {**signed(OWN), "flwr-signature": ""},
    ):
        assert knock(push, headers, body=body) == 401
    assert knock.read == 0
    assert knock(push, signed(OWN), body=body) == 200
    assert knock.app.got == [MEBIBYTE]


@attack("B3", "Sends a body above the cap of its path, of no stated length, or in chunks, with a valid key", "refused unread")
def test_a_body_above_its_cap_is_not_read() -> None:
    knock = Knocker()
    for name, cap in CAPS.items():
        assert knock(f"/v1/fleet/{name}", signed(OWN), length=cap + 1) == 413
    assert knock(PULL, signed(OWN), length=None) == 411
    assert knock(PULL, {**signed(OWN), "transfer-encoding": "chunked"}) == 411
    assert knock(PULL, signed(OWN), method="GET") == 404
    assert knock.app.got == []
    assert knock.read == 0


@attack("B3", "Sends a body so slowly that connections run out", "the connection is closed")
def test_a_slow_body_is_given_up() -> None:
    assert Knocker(Limits(chunk_seconds=0.05))(PULL, signed(OWN), body=b"x", pause=600) == 408
    assert Knocker(Limits(body_seconds=0.05))(PULL, signed(OWN), body=b"x", pause=600) == 408


@attack("B3", "Repeats requests without a key", "refused with 429; a client behind the same address is not blocked")
def test_strangers_are_blocked_and_clients_behind_the_same_address_are_not() -> None:
    knock = Knocker(Limits(refusals=3))
    assert [knock(PULL) for _ in range(5)] == [401, 401, 401, 429, 429]
    assert knock(PULL, client="192.0.2.8") == 401
    assert knock(PULL, signed(OWN)) == 200


@attack("B3", "Sends requests at any rate with a valid key", "they wait; beyond 32 waiting they are refused")
def test_a_key_that_asks_too_often_waits() -> None:
    knock = Knocker(Limits(rate=20, burst=2))
    start = time.monotonic()
    assert [knock(PULL, signed(OWN)) for _ in range(4)] == [200] * 4
    assert time.monotonic() - start > 0.05
    assert Knocker(Limits(rate=0.001, burst=0, waiting=0))(PULL, signed(OWN)) == 429


def test_an_insecure_federation_keeps_its_caps() -> None:
    knock = Knocker(insecure=True)
    assert knock(PULL) == 200
    assert knock(PULL, length=10 * MEBIBYTE) == 413


@pytest.fixture
def port() -> Iterator[int]:
    """A door on a real port, with the limits of a SuperLink."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        number = int(one.getsockname()[1])
    app = partial(Door, keys=lambda: {public(OWN)}, token=TOKEN)(App())
    server = uvicorn.Server(uvicorn.Config(app, port=number, log_level="error", **UVICORN_LIMITS))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield number
    server.should_exit = True
    thread.join(10)


@attack("B3", "Posts 2,000 bodies of up to 6 MiB without a key", "memory grows by less than 20 MiB")
def test_thousands_of_posts_without_a_key_cost_no_memory(port: int) -> None:
    before, part = psutil.Process().memory_info().rss, bytes(256 * 1024)
    statuses = set()
    for _ in range(2000):
        with socket.create_connection(("127.0.0.1", port), 10) as one:
            one.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 6000000\r\n\r\n")
            try:
                one.sendall(part)
                statuses.add(one.recv(12)[9:12])
            except ConnectionError:
                statuses.add(b"closed")
    assert statuses <= {b"401", b"429", b"closed"}
    assert b"429" in statuses
    assert psutil.Process().memory_info().rss - before < 20 * MEBIBYTE


def pushed(node: int, source: int, reply_to: str, number: int = 1) -> Any:
    message = SimpleNamespace(metadata=SimpleNamespace(src_node_id=source, reply_to_message_id=reply_to))
    return SimpleNamespace(
        node=SimpleNamespace(node_id=node), messages_list=[message] * number, message_object_trees=[0] * number
    )


@attack("B2", "Posts a message as the server, as another node, or several at once", "refused with 403")
@pytest.mark.parametrize("request_", [pushed(7, 1, ""), pushed(7, 8, "known id"), pushed(7, 7, ""), pushed(7, 7, "id", 2)])
def test_a_node_sends_only_its_own_answers(request_: Any) -> None:
    taken: list[Any] = []
    push = only_own_replies(lambda request, state: taken.append(request))
    with pytest.raises(HTTPException) as caught:
        push(request=request_, state=None)
    assert caught.value.status_code == 403
    push(request=pushed(7, 7, "id"), state=None)
    assert len(taken) == 1


@attack("B8", "Fills the server's disk with parts of answers", "refused with 507 above max_disk_gib")
def test_a_full_disk_takes_no_more() -> None:
    room = [True, False]
    push = only_with_room(lambda request, state: "stored", lambda: room.pop(0))
    assert push(request=None, state=None) == "stored"
    with pytest.raises(HTTPException) as caught:
        push(request=None, state=None)
    assert caught.value.status_code == 507
