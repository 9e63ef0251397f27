"""Persistent process of a client: it takes one task after the other from its SuperNode and answers with the app it was given.

Flower starts a new process for every message, which imports torch anew, and runs the code that came with the run. This one
keeps data, networks and imports between messages, and looks at no code but its own: the run's app bundle is not even unpacked.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from unisono.engines.flower.internals import TaskQueue, TaskSession, look_for_parts_soon
from unisono.engines.flower.messages import FAILED, failure_content

log = logging.getLogger("unisono.client")


def serve_tasks(
    app: ClientApp,
    address: str,
    secret: Path,
    *,
    poll: float = 0.02,
    on_error: Callable[[BaseException], None] = lambda error: None,
) -> None:
    """Answer the tasks of a SuperNode until the process is ended, one after the other.

    Each task waits for its message in a thread of its own: when a server is killed, a message may stay half delivered for ever.

    Args:
        app: what answers.
        address: ``host:port`` of the SuperNode's runtime API, on this machine.
        secret: file of the secret that the SuperNode knows this process by.
        poll: seconds between two looks for a task, each of which waits at the SuperNode until there is one.
        on_error: told when a task fails outside of the app.
    """
    look_for_parts_soon()
    queue = TaskQueue(address, secret.read_bytes())
    turn = threading.Lock()

    def work(token: str) -> None:
        try:
            _do(app, TaskSession(address, token), turn)
        except Exception as error:
            on_error(error)

    while True:
        token = queue.acquire()
        if token is not None:
            threading.Thread(target=work, args=(token,), name="task", daemon=True).start()
        time.sleep(poll)


def _do(app: ClientApp, session: TaskSession, turn: threading.Lock) -> None:
    """Answer one task: message in, reply out, a failure out if the app raises."""
    context: Context | None = None
    failure = "the task failed"
    try:
        message, context = session.pull()
        try:
            with turn:
                reply = app(message=message, context=context)
            failure = ""
        except Exception as error:
            log.error("%s: %s\n%s", type(error).__name__, error, traceback.format_exc())
            failure = FAILED
            reply = Message(failure_content(FAILED), reply_to=message)
        session.push(reply, context)
    finally:
        session.finish(context, failure)
        session.close()
