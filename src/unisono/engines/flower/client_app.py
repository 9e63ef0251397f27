"""The client's side of Flower: a message in, the desk's answer out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp

from unisono.core.errors import ClientError, UserError
from unisono.engines.flower.codec import (
    Request,
    answer_content,
    failure_content,
    read_request,
    read_values,
    values_content,
)
from unisono.federation.worker import Answer


class Desk(Protocol):
    """Where a client's requests are worked on."""

    def answer(self, request: Request) -> Answer:
        """The answer to a request; a ClientError or UserError if there is none."""

    def describe(self, question: dict[str, object]) -> dict[str, object]:
        """What the server may know of this client before a run."""

    def evaluate(self, request: Request) -> dict[str, float]:
        """Scores of the networks in a request on this client's samples."""


def make_client_app(open_desk: Callable[[UserConfig], Desk]) -> ClientApp:
    """A ClientApp whose messages are answered at a desk.

    Args:
        open_desk: the desk of a node's config; asked for every message, so it keeps what is dear.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        try:
            content = answer_content(open_desk(context.node_config).answer(read_request(message.content)))
        except ClientError as error:
            content = failure_content(error.reason, error.details)
        except UserError as error:
            content = failure_content(str(error))
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        try:
            scores = open_desk(context.node_config).evaluate(read_request(message.content))
            content = values_content("scores", scores)
        except (ClientError, UserError) as error:
            content = failure_content(str(error))
        return Message(content, reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        try:
            told = open_desk(context.node_config).describe(read_values(message.content, "question"))
            content = values_content("description", told)
        except UserError as error:
            content = failure_content(str(error))
        return Message(content, reply_to=message)

    return app
