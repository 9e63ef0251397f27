"""The client's side of Flower: a message in, the handler's answer out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp

from unisono.core.errors import ClientError, UserError
from unisono.engines.flower.messages import (
    Request,
    answer_content,
    failure_content,
    read_request,
    read_values,
    values_content,
)
from unisono.federation.worker import Answer


class ClientHandler(Protocol):
    """The object that answers a client's requests."""

    def answer(self, request: Request) -> Answer:
        """The answer to a request; a ClientError or UserError if there is none."""

    def describe(self, question: dict[str, object]) -> dict[str, object]:
        """What the server may know of this client before a run."""

    def evaluate(self, request: Request) -> dict[str, float]:
        """Scores of the networks in a request on this client's samples."""


def make_client_app(open_handler: Callable[[UserConfig], ClientHandler]) -> ClientApp:
    """A ClientApp whose messages a handler answers.

    Args:
        open_handler: returns the handler for a node's config; called for every message, so it caches.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        try:
            content = answer_content(open_handler(context.node_config).answer(read_request(message.content)))
        except ClientError as error:
            content = failure_content(error.reason, error.details)
        except UserError as error:
            content = failure_content(str(error))
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        try:
            scores = open_handler(context.node_config).evaluate(read_request(message.content))
            content = values_content("scores", scores)
        except (ClientError, UserError) as error:
            content = failure_content(str(error))
        return Message(content, reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        try:
            told = open_handler(context.node_config).describe(read_values(message.content, "question"))
            content = values_content("description", told)
        except UserError as error:
            content = failure_content(str(error))
        return Message(content, reply_to=message)

    return app
