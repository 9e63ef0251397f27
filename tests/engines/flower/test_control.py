"""The control of a SuperLink."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr")

from unisono.core.errors import UserError
from unisono.deploy.certificates import make_node_key
from unisono.engines.flower import control as module
from unisono.engines.flower.control import Control
from unisono.engines.flower.internals import RegisteredNode
from unisono.engines.flower.nodes import key_bytes


class FakeClient:
    """A SuperLink that keeps nodes in a list."""

    listed: list[RegisteredNode] = []
    error: httpx.HTTPError | None = None

    def __init__(self, address: str, certificate: bytes | None, token: str | None) -> None:
        self.token = token
        self.registered: list[bytes] = []
        self.unregistered: list[int] = []
        self.started: list[tuple[str, object]] = []
        self.stopped: list[int] = []

    def nodes(self) -> list[RegisteredNode]:
        if FakeClient.error is not None:
            raise FakeClient.error
        return FakeClient.listed

    def start_run(self, app: Path, config: dict[str, str]) -> int:
        self.nodes()
        self.started.append((str(app), config))
        return 12345678901234567890

    def stop_run(self, run_id: int) -> None:
        self.nodes()
        self.stopped.append(run_id)

    def register(self, public_key: bytes) -> None:
        self.registered.append(public_key)

    def unregister(self, node_id: int) -> None:
        self.unregistered.append(node_id)

    def close(self) -> None:
        pass


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Control:
    monkeypatch.setattr(module, "SuperLinkClient", FakeClient)
    monkeypatch.setattr(FakeClient, "listed", [])
    monkeypatch.setattr(FakeClient, "error", None)
    return Control("127.0.0.1:9", None, "token")


def test_a_run_is_started_and_stopped(control: Control) -> None:
    with control as opened:
        assert opened.start(Path("/some/app"), {"directory": "/a path"}) == 12345678901234567890
        opened.stop(7)
        client = opened._client
    assert isinstance(client, FakeClient)
    assert (client.token, client.started, client.stopped) == ("token", [("/some/app", {"directory": "/a path"})], [7])


def test_why_the_server_refused_is_one_sentence(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    response = httpx.Response(403, text="only with the server's control.token", request=httpx.Request("POST", "https://x"))
    monkeypatch.setattr(FakeClient, "error", httpx.HTTPStatusError("no", request=response.request, response=response))
    with (
        pytest.raises(UserError, match=r"The server at 127\.0\.0\.1:9 refused: only with the server's control\.token"),
        control as opened,
    ):
        opened.stop(7)


def test_a_server_that_does_not_answer_is_named_before_anything_is_started(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeClient, "error", httpx.ConnectError("refused"))
    with (
        pytest.raises(UserError, match=r"does not answer \(refused\): start it with 'unisono deploy server'"),
        control as opened,
    ):
        opened.start(Path("/some/app"), {})


def test_unknown_keys_are_admitted_and_nodes_without_a_key_turned_away(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, new = make_node_key()[1], make_node_key()[1]
    listed = [
        RegisteredNode(1, key_bytes(known), "online"),
        RegisteredNode(2, b"another", "offline"),
        RegisteredNode(3, b"one that left", "unregistered"),
    ]
    monkeypatch.setattr(FakeClient, "listed", listed)
    with control as opened:
        opened.admit_only([known, new])
        client = opened._client
    assert isinstance(client, FakeClient)
    assert client.registered == [key_bytes(new)]
    assert client.unregistered == [2]
