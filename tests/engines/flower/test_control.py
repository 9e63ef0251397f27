"""The control of a SuperLink: by Flower's command, and by keys."""

from __future__ import annotations

import json
import stat
import sys
import tomllib
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr")

from unisono.core.errors import UserError
from unisono.deploy.certificates import make_node_key
from unisono.engines.flower import control as module
from unisono.engines.flower.control import Control, key_bytes
from unisono.engines.flower.internals import RegisteredNode

FAKE = """#!{python}
import json, os, sys
from pathlib import Path
words = sys.argv[1:]
config = Path(words[words.index("--run-config") + 1]).read_text() if "--run-config" in words else ""
Path({told!r}).write_text(json.dumps({{"words": words, "config": config, "home": os.environ["FLWR_HOME"]}}))
print({answer!r})
"""


class FakeClient:
    """A SuperLink that keeps nodes in a list."""

    listed: list[RegisteredNode] = []
    error: httpx.HTTPError | None = None

    def __init__(self, address: str, certificate: bytes | None) -> None:
        self.registered: list[bytes] = []
        self.unregistered: list[int] = []

    def nodes(self) -> list[RegisteredNode]:
        if FakeClient.error is not None:
            raise FakeClient.error
        return FakeClient.listed

    def register(self, public_key: bytes) -> None:
        self.registered.append(public_key)

    def unregister(self, node_id: int) -> None:
        self.unregistered.append(node_id)

    def close(self) -> None:
        pass


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Control:
    monkeypatch.setattr(module, "SuperLinkClient", FakeClient)
    monkeypatch.setattr(FakeClient, "listed", [])
    monkeypatch.setattr(FakeClient, "error", None)
    return Control("127.0.0.1:9", None, tmp_path / "home")


def put_fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> Path:
    """A command ``flwr`` that prints this, and the file in which it writes what it was told."""
    told, program = tmp_path / "told.json", tmp_path / "flwr"
    program.write_text(FAKE.format(python=sys.executable, told=str(told), answer=answer))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(module.shutil, "which", lambda name, path: str(program) if name == "flwr" else None)
    return told


def test_a_run_is_started_by_flowers_command(control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = put_fake(tmp_path, monkeypatch, '{"success": true, "run-id": "12345678901234567890"}')
    directory = """/a path/with 'both' "quotes".toml"""
    with control as opened:
        assert opened.start(Path("/some/app"), {"directory": directory}) == 12345678901234567890
    found = json.loads(told.read_text())
    assert found["words"][:3] == ["run", "/some/app", "federation"]
    assert found["words"][-2:] == ["--format", "json"]
    assert tomllib.loads(found["config"]) == {"directory": directory}
    assert found["home"] == str(tmp_path / "home")
    connections = tomllib.loads((tmp_path / "home" / "config.toml").read_text())
    assert connections["superlink"]["federation"] == {"address": "127.0.0.1:9", "insecure": True}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            '{"success": false, "error-message": "Using it\\n\\n[code: 18] Run is already finished."}',
            "Run is already finished.",
        ),
        ("Traceback\nValueError: odd", "ValueError: odd"),
        ("", "it ended with code 0"),
    ],
)
def test_why_flowers_command_failed_is_one_sentence(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, reason: str
) -> None:
    put_fake(tmp_path, monkeypatch, answer)
    with pytest.raises(UserError) as caught, control as opened:
        opened.stop(7)
    assert str(caught.value).startswith("'flwr stop' failed at 127.0.0.1:9: ")
    assert str(caught.value).endswith(reason)
    assert "\n" not in str(caught.value)


def test_a_server_that_does_not_answer_is_named_before_anything_is_started(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = put_fake(tmp_path, monkeypatch, '{"success": true, "run-id": "1"}')
    monkeypatch.setattr(FakeClient, "error", httpx.ConnectError("refused"))
    with (
        pytest.raises(UserError, match=r"does not answer \(refused\): start it with 'unisono deploy server'"),
        control as opened,
    ):
        opened.start(Path("/some/app"), {})
    assert not told.exists()


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
