"""Two hosts, in two network namespaces: a client on the other one joins, and the control of the server stays on its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.deploy.running import UNISONO, RunningFederation
from unisono.deploy.condition import node_table
from unisono.deploy.directories import ClientDirectory

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]
OTHER = f"unisono{os.getpid()}"
HERE = "10.213.7.1"
THERE = "10.213.7.2"
KNOCK = """
import ssl, sys, urllib.error, urllib.request
context = ssl.create_default_context(cafile=sys.argv[1])
for path in sys.argv[3:]:
    request = urllib.request.Request(sys.argv[2] + path, b"", {"X-Forwarded-For": "127.0.0.1"})
    try:
        print(urllib.request.urlopen(request, timeout=300, context=context).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def other_host() -> Iterator[str]:
    """A network namespace that a cable connects with this one."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    try:
        ip("netns", "add", OTHER)
    except subprocess.CalledProcessError:
        pytest.skip("this machine has no network namespaces")
    try:
        ip("link", "add", "unisono0", "type", "veth", "peer", "name", "unisono1")
        ip("link", "set", "unisono1", "netns", OTHER)
        ip("addr", "add", f"{HERE}/24", "dev", "unisono0")
        ip("link", "set", "unisono0", "up")
        for words in (f"addr add {THERE}/24 dev unisono1", "link set unisono1 up", "link set lo up"):
            ip("netns", "exec", OTHER, "ip", *words.split())
        yield OTHER
    finally:
        subprocess.run(["ip", "link", "del", "unisono0"], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", OTHER], capture_output=True, check=False)


def test_a_client_joins_from_another_host_that_has_no_say_in_the_server(other_host: str, tmp_path: Path) -> None:
    federation = RunningFederation(tmp_path, hosts=[HERE])
    federation.configure_server(host="0.0.0.0")
    path = federation.clients[0]
    server = f"{HERE}:{federation.server.config.port}"
    assert ClientDirectory.open(path).config.server == server
    there = ["ip", "netns", "exec", other_host]
    try:
        federation.spawn([*UNISONO, "deploy", "server", str(federation.server.path)], "server")
        federation.spawn([*there, *UNISONO, "deploy", "client", str(path)], "client-0")
        federation.wait_for(lambda: dict(node_table(federation.server))[0] == "online")
        paths = ["/v1/control/list-runs", "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs"]
        knock = [sys.executable, "-c", KNOCK, str(federation.server.certificate), f"https://{server}", *paths]
        from_there = subprocess.run([*there, *knock], capture_output=True, text=True, check=True).stdout.split()
        from_here = subprocess.run(knock, capture_output=True, text=True, check=True).stdout.split()
        assert from_there == ["403"] * len(paths)
        assert from_here[:2] == ["403"] * 2, "the Control API asks for the server's token"
        assert "403" not in from_here[2:]
    finally:
        federation.close()
