"""The client's side of Flower: a message in, the handler's answer out."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from unisono.core.errors import ClientError, UserError
from unisono.core.payload import Payload
from unisono.engines.flower.messages import (
    FAILED,
    Request,
    answer_content,
    failure_content,
    read_request,
    read_values,
    values_content,
)
from unisono.engines.flower.sums import ACTION, read_step, reply_content
from unisono.federation.client_turn import ClientResult

log = logging.getLogger("unisono.client")


class ClientHandler(Protocol):
    """The object that answers a client's requests."""

    def answer(self, request: Request) -> ClientResult:
        """Return the answer to a request; raise a ClientError or UserError if there is none."""

    def describe(self, question: dict[str, object]) -> dict[str, object]:
        """Return what the server may know of this client before a run."""

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Return scores of the networks in a request on this client's samples, under ``scores``."""

    def sum_step(self, values: dict[str, Any]) -> tuple[dict[str, Any], Payload]:
        """Return the answer to a step of a masked sum after the first, and its masked vector if the step asks for it."""


def make_client_app(open_handler: Callable[[UserConfig], ClientHandler]) -> ClientApp:
    """A ClientApp whose messages a handler answers.

    Args:
        open_handler: returns the handler for a node's config; called for every message, so it caches.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _reply(message, lambda: answer_content(open_handler(context.node_config).answer(read_request(message.content))))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _reply(
            message,
            lambda: values_content("scores", open_handler(context.node_config).evaluate(read_request(message.content))),
        )

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return _reply(
            message,
            lambda: values_content(
                "description", open_handler(context.node_config).describe(read_values(message.content, "question"))
            ),
        )

    @app.query(ACTION)
    def sum_step(message: Message, context: Context) -> Message:
        return _reply(
            message,
            lambda: reply_content(*open_handler(context.node_config).sum_step(read_step(message.content))),
        )

    return app


def _reply(message: Message, answer: Callable[[], RecordDict]) -> Message:
    """Reply with the answer, or with the reason why there is none: whatever a handler raises, the server hears of it."""
    try:
        content = answer()
    except ClientError as error:
        content = failure_content(error.reason, error.details)
    except UserError as error:
        content = failure_content(str(error))
    except Exception as error:
        log.error("%s: %s\n%s", type(error).__name__, error, traceback.format_exc())
        content = failure_content(FAILED)
    return Message(content, reply_to=message)
