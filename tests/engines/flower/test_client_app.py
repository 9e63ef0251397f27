"""Whatever a handler raises, the server hears of it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict

from tests.engines.flower.grid import InstantGrid
from unisono.core.errors import ClientError, UserError
from unisono.engines.flower.client_app import make_client_app
from unisono.engines.flower.messages import RequestBuilder, values_content


class Raising:
    """A handler that raises the same error for every request."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def answer(self, request: Any) -> Any:
        raise self.error

    describe = evaluate = answer


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
@pytest.mark.parametrize(
    ("error", "reason", "details"),
    [
        (ClientError(0, "train", 1, "the loss is NaN", "where it was"), "the loss is NaN", "where it was"),
        (UserError("No consent."), "No consent.", ""),
        (ZeroDivisionError("by zero"), "the client failed; its own log says why", ""),
    ],
)
def test_an_error_becomes_a_failure_with_its_reason(kind: str, error: Exception, reason: str, details: str) -> None:
    from unisono.core.context import Context as Place
    from unisono.core.payload import Payload

    grid = InstantGrid(lambda message: None)
    content = values_content("question", {}) if kind == "query" else RequestBuilder(Place(0), "terms", Payload()).build(1)
    grid.push_messages([message := Message(content, 7, kind)])
    app = make_client_app(lambda node_config: Raising(error))
    reply = app(message=message, context=Context(1, 7, {}, RecordDict(), {}))
    assert not reply.has_error()
    failure = reply.content.config_records["failure"]
    assert failure["reason"] == reason
    assert failure["details"] == details
