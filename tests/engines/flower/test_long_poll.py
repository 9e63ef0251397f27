"""Requests for messages wait for news, on a real port."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
import uvicorn

from unisono.engines.flower import long_poll
from unisono.engines.flower.handlers import UVICORN_LIMITS
from unisono.engines.flower.long_poll import LongPoll

FLEET, RUN = long_poll.FLEET, long_poll.RUNTIME
NODES, SERVER = FLEET + "pull-messages", RUN + "pull-messages"


class Link:
    """A SuperLink with a box of messages for each side; a push puts one in, a pull takes one out."""

    def __init__(self) -> None:
        self.boxes: dict[str, list[bytes]] = {NODES: [], SERVER: []}
        self.looks = 0
        self.bodies: set[bytes] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, answer, path = (await receive())["body"], b"", scope["path"]
        if path in self.boxes:
            self.looks += 1
            self.bodies.add(body)
            answer = self.boxes[path].pop(0) if self.boxes[path] else b""
        elif path == RUN + "push-messages":
            self.boxes[NODES].append(body)
        elif path == FLEET + "push-messages":
            self.boxes[SERVER].append(body)
        status = 404 if path == "/nowhere" else 200
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(answer))]})
        await send({"type": "http.response.body", "body": answer})


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Link, str]]:
    monkeypatch.setattr(long_poll, "SECONDS", {FLEET: 20.0, RUN: 20.0})
    app = Link()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(LongPoll(app), port=port, log_level="error", **UVICORN_LIMITS))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield app, f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


def later(url: str, key: str = "a", seconds: float = 30.0) -> Future[httpx.Response]:
    """The answer to a request that is made in a thread."""
    pool = ThreadPoolExecutor(1)
    return pool.submit(httpx.post, url, content=b"who I am", headers={"flwr-public-key": key}, timeout=seconds)


def until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def sent(url: str, side: str, word: bytes) -> Future[httpx.Response]:
    """A message of the server's run or of a node, in two parts; the sender's own question for messages, which ends it."""
    key = "" if side == RUN else "sender"
    for part in ("push-messages", "push-object"):
        httpx.post(url + side + part, content=word, headers={"flwr-public-key": key})
    return later(url + side + "pull-messages", key)


@pytest.mark.parametrize(("side", "other"), [(RUN, FLEET), (FLEET, RUN)])
def test_a_request_waits_for_a_whole_message_of_the_other_side(link: tuple[Link, str], side: str, other: str) -> None:
    app, url = link
    answer = later(url + other + "pull-messages")
    until(lambda: app.looks == 1)
    assert not answer.done()
    sent(url, side, b"news")
    assert answer.result(20).content == b"news"
    until(lambda: app.looks == 3)  # one at first, one at the news, and one of the sender
    assert app.bodies == {b"who I am"}, "each look has the whole request"


def test_nodes_do_not_look_while_the_run_sends(link: tuple[Link, str]) -> None:
    """All of them would ask again and again for parts that have not come."""
    app, url = link
    waiting = later(url + NODES, "a")
    until(lambda: app.looks == 1)
    httpx.post(url + RUN + "push-messages", content=b"news")
    assert later(url + NODES, "a").result(20).content == b"news", "who asks besides does so on its own account"
    httpx.post(url + RUN + "push-messages", content=b"more")
    late = later(url + NODES, "b")
    time.sleep(0.2)
    assert (app.looks, late.done(), waiting.done()) == (2, False, False)
    later(url + SERVER)
    assert {waiting.result(20).content, app.boxes[NODES][0] if app.boxes[NODES] else late.result(20).content} >= {b"more"}


def test_what_is_there_comes_at_once(link: tuple[Link, str]) -> None:
    app, url = link
    app.boxes[NODES].append(b"old")
    assert httpx.post(url + NODES).content == b"old"
    assert app.looks == 1
    assert httpx.post(url + "/nowhere").status_code == 404


def test_each_key_has_one_request_that_waits(link: tuple[Link, str]) -> None:
    app, url = link
    first, other = later(url + NODES, "a"), later(url + NODES, "b")
    until(lambda: app.looks == 2)
    assert later(url + NODES, "a").result(20).content == b"", "the second of a key is answered at once"
    assert not first.done()
    assert not other.done()
    app.boxes[NODES].append(b"one")
    sent(url, RUN, b"two")
    assert {first.result(20).content, other.result(20).content} == {b"one", b"two"}


def test_a_message_is_not_lost_on_a_caller_that_has_gone(link: tuple[Link, str]) -> None:
    """A node that was killed while it waited would otherwise be given the message, and nobody would ever answer it."""
    _, url = link
    gone = later(url + NODES, "a", seconds=0.3)
    with pytest.raises(httpx.ReadTimeout):
        gone.result(20)
    again: list[Future[httpx.Response]] = []

    def waits() -> bool:
        if not again or again[-1].done():  # until the server has noticed that the first one is gone
            again.append(later(url + NODES, "a"))
            time.sleep(0.05)
        return not again[-1].done()

    until(waits)
    sent(url, RUN, b"news")
    assert again[-1].result(20).content == b"news"


def test_after_its_time_a_request_is_told_that_there_is_nothing(
    link: tuple[Link, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, url = link
    monkeypatch.setattr(long_poll, "SECONDS", {FLEET: 0.2, RUN: 0.2})
    assert httpx.post(url + NODES).content == b""
    assert app.looks >= 1
    assert later(url + NODES).result(20).content == b""
