"""``unisono deploy init``: a directory with everything that a federation needs but its data."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from unisono.core.config import Tree, make_section
from unisono.core.errors import UserError
from unisono.deploy.certificates import LOCAL_NAMES, Authority, make_node_key, private_pem, write_secret
from unisono.deploy.directories import (
    CLIENT_FILE,
    SERVER_FILE,
    ClientConfig,
    DeployServerConfig,
    write_config,
    write_keys,
)
from unisono.deploy.members import MEMBERS_FILE, Members
from unisono.deploy.policy_tables import strict_tables
from unisono.deploy.server_audit import record
from unisono.deploy.services import write_start_files

CLIENT_PORT = 9094
APP = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "unisono-federation"
version = "1.0.0"
description = "Unsupervised federated learning with unisono"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41,<1.43", "unisono"]

[tool.flwr.app]
publisher = "unisono"
fab-format-version = 1
flwr-version-target = "{flower}"

[tool.flwr.app.components]
serverapp = "unisono.deploy.server_app:app"
clientapp = "unisono.deploy.client_app:app"

[tool.flwr.app.config]
directory = ""
recipe = ""
settings = ""
"""


def create_federation(
    path: Path,
    num_clients: int,
    hosts: Sequence[str] = ("127.0.0.1",),
    port: int = 9092,
    insecure: bool = False,
    policy: Tree | None = None,
) -> None:
    """Make the directories ``authority/``, ``server/`` and ``client-0/``, ``client-1/``, ...

    Args:
        path: where; it must not hold anything yet.
        num_clients: size of the federation.
        hosts: names and addresses of the server; clients use the first.
        port: the server's.
        insecure: without TLS and without proof of who a client is.
        policy: tables of every ``client.toml``; the stricter ones where None.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists already and is not empty: choose another directory.")
    if num_clients < 1:
        raise UserError(f"--clients must be at least 1, got {num_clients}.")
    if not hosts:
        raise UserError("--host is required: the name or address that clients reach the server by.")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)  # it holds the keys of everyone
    pairs = {client: make_node_key() for client in range(num_clients)}
    public = {client: pair[1] for client, pair in pairs.items()}
    authority = Authority.create(f"unisono federation {path.name}")
    key, certificate = authority.certify(hosts)
    _write_authority(path / "authority", authority)
    _write_server(
        path / "server", DeployServerConfig(host=_listening(hosts), port=port, num_clients=num_clients, insecure=insecure)
    )
    if not insecure:
        write_secret(path / "server" / "server.key", key)
        (path / "server" / "server.crt").write_bytes(certificate)
        (path / "server" / "ca.crt").write_bytes(authority.pem)
    members = Members(1, public).signed(authority)
    write_keys(path / "server" / "nodes.json", public)
    (path / "server" / MEMBERS_FILE).write_text(members)
    record(path / "server", "init", f"{num_clients} clients")
    host = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
    tables = strict_tables(num_clients, insecure) if policy is None else policy
    for client, (private, line) in pairs.items():
        directory = path / f"client-{client}"
        directory.mkdir(mode=0o700, parents=True)
        own = {"client_id": client, "server": f"{host}:{port}", "insecure": insecure, "port": CLIENT_PORT + client}
        write_config(directory / CLIENT_FILE, make_section(ClientConfig, {**own, **tables}, "client"))
        write_secret(directory / "node.key", private)
        (directory / "node.pub").write_text(line + "\n")
        write_secret(directory / "runtime.secret", secrets.token_bytes(32))
        write_keys(directory / "nodes.json", public)
        (directory / MEMBERS_FILE).write_text(members)
        if not insecure:
            (directory / "ca.crt").write_bytes(authority.pem)
        write_start_files(directory, "client")


def _listening(hosts: Sequence[str]) -> str:
    """Return the address to listen on: this machine's own unless another name or address was given."""
    if any(host not in LOCAL_NAMES and not host.startswith("127.") for host in hosts):
        return "0.0.0.0"
    return "::1" if hosts[0] == "::1" else "127.0.0.1"


def _write_authority(path: Path, authority: Authority) -> None:
    path.mkdir(mode=0o700, parents=True)
    write_secret(path / "ca.key", private_pem(authority.key))
    (path / "ca.crt").write_bytes(authority.pem)


def _write_server(path: Path, config: DeployServerConfig) -> None:
    path.mkdir(mode=0o700, parents=True)
    (path / "app").mkdir()
    write_config(path / SERVER_FILE, config)
    (path / "app" / "pyproject.toml").write_text(APP.format(flower=metadata.version("flwr")))
    (path / "app" / "LICENSE").write_text("Apache-2.0\n")
    write_start_files(path, "server", config.port)
