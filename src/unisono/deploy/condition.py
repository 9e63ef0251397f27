"""Condition of a server for people who operate it: processes, certificates, clients, runs.

Nothing here imports torch or flwr, so that ``unisono deploy status`` answers at once.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unisono.core.config import parse_json
from unisono.core.errors import UserError
from unisono.deploy.certificates import expiry
from unisono.deploy.directories import DATABASE, PAUSED_FILE, START_SECONDS, ServerDirectory, is_wanted
from unisono.deploy.supervisor import supervisor_pid
from unisono.engines.flower.nodes import key_bytes, nodes_in
from unisono.runs.locks import is_locked

if TYPE_CHECKING:
    from unisono.engines.flower.control import Control

ANSWER_SECONDS = 2.0


def connect(server: ServerDirectory) -> Control:
    """Return a connection to the SuperLink of a server's directory."""
    from unisono.engines.flower.control import Control

    return Control(server.address, server.certificate, server.token)


def condition(server: ServerDirectory) -> Iterator[str]:
    """Yield the condition of a server, line by line; what a process that was killed wrote last is not believed."""
    pid = supervisor_pid(server.path)
    yield "server: not running" if pid is None else f"server: running, process {pid}"
    if (server.path / PAUSED_FILE).exists():
        yield f"paused: no run goes on before 'unisono deploy pause {server.path} --off'"
    if not server.config.insecure:
        for name in ("server.crt", "ca.crt"):
            end, warning = expiry(server.path / name)
            yield f"warning: {warning}" if warning else f"{name}: until {end:%Y-%m-%d}"
    if pid is not None:
        try:
            for number, word in node_table(server):
                yield f"client {number:<4} {word}"
        except UserError as error:
            yield f"warning: {error}"
    for name, word, rounds, reason in run_table(server):
        yield f"run {name}: {word}, {rounds} rounds done{': ' + reason if reason else ''}"


def node_table(server: ServerDirectory) -> list[tuple[int, str]]:
    """Return every client of the federation, and whether Flower sees it."""
    host, _, port = server.address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"The server at {server.address} does not answer ({error}): start it with 'unisono deploy server'."
        ) from error
    nodes = nodes_in(server.path / DATABASE)
    if server.config.insecure:
        return list(enumerate(nodes.values()))
    found: dict[int, str] = {}
    for line, client in server.admitted_keys.items():
        word = nodes.get(key_bytes(line), "not admitted")
        found[client] = word if word == "online" else found.get(client, word)
    return sorted(found.items())


def run_table(server: ServerDirectory) -> list[tuple[str, str, int, str]]:
    """Return every run: name, status, rounds done, and why it failed."""
    rows = []
    for path in sorted(server.runs.glob("*")):
        if (path / "status.json").is_file():
            status = parse_json((path / "status.json").read_text())
            in_use = is_locked(path / ".lock")
            begins = status["status"] == "starting"
            is_late = begins and time.time() - (path / "status.json").stat().st_mtime > START_SECONDS
            if (is_late or status["status"] in ("running", "waiting for clients")) and not in_use:
                status = {**status, "status": "interrupted"}
            if status["status"] in ("interrupted", "failed") and is_wanted(path):
                status = {**status, "status": f"{status['status']}, to be continued"}
            rows.append((path.name, str(status["status"]), int(status.get("round", 0)), str(status.get("reason", ""))))
    return rows
