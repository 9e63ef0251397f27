"""``unisono deploy check``: what an operator or an owner should know before a run fails for it."""

from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path
from typing import Literal

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from unisono import __version__
from unisono.core.errors import UserError
from unisono.deploy.certificates import expiry
from unisono.deploy.condition import connect, run_table
from unisono.deploy.directories import VERSION_FILE, ClientDirectory, ServerDirectory
from unisono.deploy.joining import public_line
from unisono.deploy.members import stored_members
from unisono.deploy.policy_tables import num_bytes
from unisono.deploy.processes import check_port_is_free
from unisono.deploy.supervisor import supervisor_pid
from unisono.engines.flower.control import Control

Level = Literal["ok", "warning", "error"]
SECRETS = ("server.key", "node.key", "own.secret", "runtime.secret", "control.token")
MOST_SECONDS = 5.0
"""Seconds by which the clocks of client and server may differ; Flower refuses signatures from the future."""


@dataclass(frozen=True)
class Finding:
    """Outcome of one check: how bad it is, what was looked at, and what was found."""

    level: Level
    subject: str
    sentence: str


def check_server(server: ServerDirectory) -> Iterator[Finding]:
    """Yield what is right and wrong with a server, on its own machine."""
    yield from _common(server.path)
    yield from _guarded("certificates", lambda: _certificates(server))
    yield from _guarded("members", lambda: _members_of(server))
    yield from _guarded("port", lambda: _port(server))
    free = shutil.disk_usage(server.path).free / 2**30
    wanted = server.config.max_disk_gib
    yield Finding("ok" if free > wanted else "warning", "disk", f"{free:.1f} GiB free, max_disk_gib = {wanted:g}")
    if (server.path.parent / "authority" / "ca.key").exists():
        yield Finding("warning", "authority", "the authority's key is on this machine: move it to a medium that is not")
    for name, word, rounds, reason in run_table(server):
        level: Level = "ok" if word in ("finished", "running", "starting", "waiting for clients") else "warning"
        yield Finding(level, f"run {name}", f"{word}, {rounds} rounds done{': ' + reason if reason else ''}")


def check_client(client: ClientDirectory) -> Iterator[Finding]:
    """Yield what is right and wrong with a client, on its own machine."""
    yield from _common(client.path)
    if (file := client.path / VERSION_FILE).is_file():
        other = file.read_text()
        yield Finding("ok" if other == __version__ else "error", "version", f"the server last asked as unisono {other}")
    if not client.config.insecure:
        yield from _guarded("key", lambda: _key_of(client))
    yield from _guarded("server", lambda: _reach(client))
    yield from _guarded("data and policy", lambda: _data(client))
    yield from _guarded("ledger and audit", lambda: _books(client))
    free, wanted = shutil.disk_usage(client.path).free, 2 * num_bytes(client.config.resources.max_state)
    sentence = f"{free / 2**30:.1f} GiB free, resources.max_state = {client.config.resources.max_state}"
    yield Finding("ok" if free > wanted else "warning", "disk", sentence)


def _common(path: Path) -> Iterator[Finding]:
    yield Finding("ok", "version", f"unisono {__version__}, flwr {metadata.version('flwr')}: all machines need the same")
    loose = [name for name in SECRETS if (path / name).exists() and stat.S_IMODE((path / name).stat().st_mode) & 0o077]
    loose += [path.name] if stat.S_IMODE(path.stat().st_mode) & 0o077 else []
    told = f"others may read {', '.join(loose)}: chmod go= on each" if loose else "secrets are this account's alone"
    yield Finding("error" if loose else "ok", "files", told)
    yield Finding("ok", "process", f"runs, process {supervisor_pid(path)}" if supervisor_pid(path) else "does not run")


def _guarded(subject: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what a check finds, and an error if it cannot be carried out."""
    try:
        yield from look()
    except (UserError, OSError, ValueError) as error:
        yield Finding("error", subject, str(error))


def _certificates(server: ServerDirectory) -> Iterator[Finding]:
    if server.config.insecure:
        yield Finding("warning", "certificates", "server.toml says insecure = true: nothing is encrypted, and anyone may join")
        return
    authority, own = (x509.load_pem_x509_certificate((server.path / name).read_bytes()) for name in ("ca.crt", "server.crt"))
    key = load_pem_private_key((server.path / "server.key").read_bytes(), None)
    if key.public_key() != own.public_key():
        yield Finding("error", "certificates", "server.key and server.crt do not belong together: run 'unisono deploy rotate'")
    try:
        own.verify_directly_issued_by(authority)
    except Exception:
        yield Finding("error", "certificates", "ca.crt has not signed server.crt: run 'unisono deploy rotate'")
    for name in ("server.crt", "ca.crt"):
        end, warning = expiry(server.path / name)
        yield Finding("warning" if warning else "ok", "certificates", warning or f"{name} holds until {end:%Y-%m-%d}")


def _members_of(server: ServerDirectory) -> Iterator[Finding]:
    if server.config.insecure:
        return
    members, keys = stored_members(server.path), server.keys
    if dict(members.clients) == keys:
        yield Finding("ok", "members", f"{len(keys)} clients, list {members.version} is signed")
    elif set(keys.items()) < set(members.clients.items()):
        left = sorted(set(members.clients) - set(keys))
        told = f"clients do not know that {left} were removed: repeat 'unisono deploy remove' with --authority"
        yield Finding("warning", "members", told)
    else:
        yield Finding("error", "members", "nodes.json has keys that the authority has not signed: restore it from a backup")


def _port(server: ServerDirectory) -> Iterator[Finding]:
    config = server.config
    if supervisor_pid(server.path) is None:
        check_port_is_free(config.host, config.port, "port in server.toml")
        yield Finding("ok", "port", f"{config.port} is free")
        return
    with connect(server) as control:
        number = len(control.nodes())
    yield Finding("ok", "port", f"{server.address} answers and knows {number} nodes")
    try:
        with Control(server.address, server.certificate, "0" * 64) as stranger:
            stranger.nodes()
        yield Finding("error", "port", "the Control API answers without control.token: restart the server")
    except UserError:
        yield Finding("ok", "port", "the Control API refuses who has no token")


def _key_of(client: ClientDirectory) -> Iterator[Finding]:
    members = stored_members(client.path)
    own = members.clients.get(client.config.client_id)
    if own != public_line(client.key.read_bytes()):
        yield Finding("error", "key", "node.key is not this client's in the list of members: see 'unisono deploy accept'")
        return
    yield Finding("ok", "key", f"client {client.config.client_id} of {len(members.clients)}, list {members.version} is signed")


def _reach(client: ClientDirectory) -> Iterator[Finding]:
    scheme = "http" if client.config.insecure else "https"
    context = ssl.create_default_context(cafile=None if client.certificate is None else str(client.certificate))
    try:
        answer = httpx.get(f"{scheme}://{client.config.server}/health", verify=context, timeout=10, trust_env=False)
    except httpx.HTTPError as error:
        yield Finding("error", "server", f"{client.config.server} does not answer ({error})")
        return
    yield Finding("ok", "server", f"{client.config.server} answers{'' if client.config.insecure else ' with its certificate'}")
    off = abs((parsedate_to_datetime(answer.headers["date"]) - datetime.now(UTC)).total_seconds())
    bad = off > MOST_SECONDS
    yield Finding("error" if bad else "ok", "clock", f"{off:.0f} s from the server's{': set it by NTP' if bad else ''}")


def _data(client: ClientDirectory) -> Iterator[Finding]:
    from unisono.data.datasets import DataConfig
    from unisono.deploy.negotiation import load_client_data

    if client.config.data is None:
        yield Finding("error", "data", "no samples: set data in client.toml, or start the client once with --data")
        return
    dataset = load_client_data(client, DataConfig())
    number, least = len(dataset.samples), client.config.require.min_samples
    if number < least:
        yield Finding("error", "data", f"{number} samples, and require.min_samples is {least}: this client answers nothing")
    else:
        yield Finding("ok", "data", f"{number} samples of shape {dataset.input_shape}")
    for remark in dataset.remarks:
        yield Finding("warning", "data", f"{remark.replace('data.bits', 'bits')} in client.toml")
    yield Finding("ok", "policy", f"{client.config.fingerprint[:16]}; 'unisono deploy policy' says what it allows")


def _books(client: ClientDirectory) -> Iterator[Finding]:
    from unisono.deploy.policy import Books

    books = Books(client)
    books.audit.verify(books.ledger)
    yield Finding("ok", "ledger and audit", f"{len(books.audit.chain.lines)} lines, none changed or removed")


def dry_round(client: ClientDirectory) -> Finding:
    """Train a small network on a few of a client's samples; nothing is kept, nothing leaves."""
    command = [sys.executable, "-m", "unisono.deploy.client_worker", str(client.path), "dry-round"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = ((done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or ["no output"])[-1]
    return Finding("error" if done.returncode else "ok", "dry round", told)
