"""The commands behind ``unisono deploy server`` and ``unisono deploy client``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from unisono.core.errors import UserError
from unisono.deploy.directories import CLIENT_FILE, DATABASE, ClientDirectory, ServerDirectory, write_config
from unisono.deploy.metrics import client_metrics, serve_metrics, server_metrics
from unisono.deploy.server_audit import record
from unisono.deploy.supervisor import Task, supervise
from unisono.engines.flower.environment import process_environment

SERVER_VARIABLE = "UNISONO_SERVER"
"""Environment variable that tells the ServerApp which server directory it belongs to."""


def keep_files_private() -> None:
    """Let nobody but this account read what this process and its children write: keys, states, single updates."""
    os.umask(0o077)


def run_server(directory: ServerDirectory) -> None:
    """Run the SuperLink until it is told to stop, and admit the federation's nodes."""
    keep_files_private()
    config = directory.config
    check_port_is_free(config.host, config.port, "port in server.toml")
    record(directory.path, "start")
    arguments = ["--host", config.host, "--port", str(config.port), "--database", str(directory.path / DATABASE)]
    if config.insecure:
        arguments.append("--insecure")
    else:
        arguments += ["--ssl-ca-certfile", str(directory.path / "ca.crt"), "--ssl-certfile", str(directory.path / "server.crt")]
        arguments += ["--ssl-keyfile", str(directory.path / "server.key"), "--enable-supernode-auth"]
    arguments += ["--isolation", "process", "--superexec-auth-secret-file", str(directory.secret)]
    environment = process_environment(directory.flower) | {SERVER_VARIABLE: str(directory.path)}
    link = [sys.executable, "-m", "unisono.deploy.superlink", str(directory.path), *arguments]
    # Flower's own way to start apps asks nobody for a secret; this one signs its requests.
    starter = [str(Path(sys.executable).with_name("flower-superexec")), "--runtime-api-address", directory.address]
    starter += ["--superexec-auth-secret-file", str(directory.secret)]
    starter += ["--insecure"] if config.insecure else ["--root-certificates", str(directory.certificate)]
    tasks = [Task("superlink", link, environment), Task("superexec", starter, environment, follows="superlink")]
    if config.metrics is not None:
        serve_metrics(config.metrics, lambda: server_metrics(directory))
    supervise(directory.path, tasks, lambda: _look_after_runs(directory))


def run_client(directory: ClientDirectory, data: str | None = None, worker: Sequence[str] | None = None) -> None:
    """Run the SuperNode and the process that answers for it until it is told to stop.

    Args:
        directory: the client's.
        data: folder or file to learn from; written to ``client.toml``, so that it is known after a restart.
        worker: the command that answers for the client, up to its directory; this package's own where None.
    """
    keep_files_private()
    if data is not None:
        config = directory.config.model_copy(update={"data": str(Path(data).expanduser().resolve())})
        write_config(directory.path / CLIENT_FILE, config)
        directory = ClientDirectory.open(directory.path)
    config = directory.config
    if config.data is None:
        raise UserError("Which samples? Start the client with --data FOLDER, or set data in client.toml.")
    _check_samples(directory)
    check_port_is_free("127.0.0.1", config.port, "port in client.toml")
    node = [sys.executable, "-m", "unisono.engines.flower.supernode", str(config.poll_interval)]
    node += ["--superlink", config.server, "--isolation", "process"]
    node += ["--superexec-auth-secret-file", str(directory.secret), "--host", "127.0.0.1", "--port", str(config.port)]
    if config.insecure:
        node.append("--insecure")
    else:
        node += ["--root-certificates", str(directory.certificate), "--auth-supernode-private-key", str(directory.key)]
    answering = [*(worker or (sys.executable, "-m", "unisono.deploy.client_worker")), str(directory.path)]
    environment = process_environment(directory.flower)
    tasks = [Task("supernode", node, environment), Task("worker", answering, environment)]
    if config.metrics is not None:
        serve_metrics(config.metrics, lambda: client_metrics(directory.path, len(tasks)))
    supervise(directory.path, tasks)


def _check_samples(directory: ClientDirectory) -> None:
    """Raise a UserError if the samples cannot be read; another process checks, so that this one stays light."""
    command = [sys.executable, "-m", "unisono.deploy.client_worker", str(directory.path), "check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    if checked.returncode:
        raise UserError((checked.stderr.strip().splitlines() or ["the samples cannot be read."])[-1])


def check_port_is_free(host: str, port: int, option: str) -> None:
    """Raise a UserError if another process listens on the port already."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(f"Port {port} on {host} cannot be used ({error.strerror}): set another {option}.") from error


def _look_after_runs(directory: ServerDirectory, seconds: float = 2.0) -> None:
    """Admit the clients, and then continue runs that were interrupted, as long as this process runs."""
    from unisono.deploy.runs import launch
    from unisono.deploy.wanted import RunKeeper

    with (directory.path / "logs" / "runs.log").open("a") as log:

        def tell(sentence: str) -> None:
            print(f"{datetime.now():%Y-%m-%d %H:%M:%S} {sentence}", file=log, flush=True)

        _admit(directory, tell)
        keeper = RunKeeper(directory, lambda path: launch(directory, path), tell)
        while True:
            keeper.look()
            time.sleep(seconds)


def _admit(directory: ServerDirectory, tell: Callable[[str], None], seconds: float = 120.0) -> None:
    """Admit the nodes with the federation's keys, and no others, as soon as the SuperLink answers; tell if that takes long."""
    from unisono.engines.flower.control import Control

    told_at = time.monotonic()
    while True:
        try:
            with Control(directory.address, directory.certificate, directory.token) as control:
                if directory.config.insecure:
                    control.nodes()
                else:
                    control.admit_only(directory.admitted_keys)
            return
        except UserError as error:
            if time.monotonic() > told_at + seconds:
                tell(f"clients cannot be admitted yet: {error}")
                told_at = time.monotonic()
            time.sleep(0.5)
