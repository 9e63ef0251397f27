"""Condition of a server for people who operate it: processes, certificates, clients, runs."""

from __future__ import annotations

from collections.abc import Iterator

from unisono.core.errors import UserError
from unisono.deploy.certificates import expiry
from unisono.deploy.directories import ServerDirectory
from unisono.deploy.runs import node_table, run_table
from unisono.deploy.supervisor import supervisor_pid
from unisono.deploy.wanted import PAUSED_FILE


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
