"""Limits that Flower's own server does not have: on connections, on what nodes may send, and on the disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

UVICORN_LIMITS: Mapping[str, Any] = {
    "limit_concurrency": 128,
    "timeout_keep_alive": 15,
    "backlog": 128,
    "h11_max_incomplete_event_size": 65536,
    "proxy_headers": False,
    "ws": "none",
    "server_header": False,
    "access_log": False,
}
"""Of the HTTP server: connections, headers, and no trust in what a header says about the address of a caller."""


class LimitedUvicorn:
    """The module ``uvicorn`` with limits on connections, and without a line in the log per request."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def run(self, **options: Any) -> None:
        """Serve with ``UVICORN_LIMITS``."""
        self._module.run(**{**options, **UVICORN_LIMITS})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def only_own_replies(push_messages: Callable[..., Any]) -> Callable[..., Any]:
    """Return Flower's handler of a node's messages, which takes from a node only its own answer to a question.

    Flower stores what a node sends as a question of the server if it answers nothing, and does not compare the sender that the
    message names with the node that signed the request.
    """

    def push(request: Any, state: Any) -> Any:
        sent = request.messages_list
        node = request.node.node_id
        is_own = len(sent) == len(request.message_object_trees) == 1 and sent[0].metadata.src_node_id == node
        if not is_own or not sent[0].metadata.reply_to_message_id:
            raise _refusal(403, "a node sends one answer of its own at a time")
        return push_messages(request=request, state=state)

    return push


def only_with_room(push_object: Callable[..., Any], has_room: Callable[[], bool]) -> Callable[..., Any]:
    """Return Flower's handler of the parts of an answer, which takes none where the disk has no room for it."""

    def push(request: Any, state: Any) -> Any:
        if not has_room():
            raise _refusal(507, "the server's disk is full: see max_disk_gib in server.toml")
        return push_object(request=request, state=state)

    return push


def patient(acquire_task: Callable[..., Any], seconds: float = 5.0, pause: float = 0.02) -> Callable[..., Any]:
    """Return a SuperNode's handler of the question for a task, which waits for a task where there is none.

    Args:
        acquire_task: Flower's, which looks in memory.
        seconds: until it answers that there is none.
        pause: between two looks.
    """

    def acquire(request: Any, state: Any) -> Any:
        deadline = time.monotonic() + seconds
        while not (answer := acquire_task(request, state)).token and time.monotonic() < deadline:
            time.sleep(pause)
        return answer

    return acquire


def uncounted(state: Any, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
    """Count no bytes of a run: nobody reads Flower's count, and unisono has its own."""


def seldom(clean_up: Callable[[Any], None], seconds: float = 1.0) -> Callable[[Any], None]:
    """Return Flower's search for tasks whose process has died, which is done once a second and not at every request."""
    done_at = -seconds

    def clean(state: Any) -> None:
        nonlocal done_at
        if time.monotonic() - done_at >= seconds:
            done_at = time.monotonic()
            clean_up(state)

    return clean


def _refusal(status: int, sentence: str) -> Exception:
    from fastapi import HTTPException

    return HTTPException(status, sentence)
