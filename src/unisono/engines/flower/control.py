"""Control a SuperLink: admit nodes, start and stop runs, ask how things stand.

Runs are started and stopped by Flower's own command, ``flwr``. Nodes are not: ``flwr supernode list`` names no public keys, so
it cannot say which node is which client's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from unisono.core.config import write_toml
from unisono.core.errors import UserError
from unisono.engines.flower.environment import CONNECTION, process_environment, write_connection
from unisono.engines.flower.internals import SuperLinkClient


class Control:
    """A connection to a SuperLink.

    Args:
        address: ``host:port``.
        certificate: of the authority that signed the SuperLink's; None talks without TLS.
        home: Flower's directory of this SuperLink.
    """

    def __init__(self, address: str, certificate: Path | None, home: Path) -> None:
        self._address = address
        self._certificate = certificate
        self._home = home
        self._client = SuperLinkClient(address, None if certificate is None else certificate.read_bytes())

    def __enter__(self) -> Control:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()
        if isinstance(error, httpx.HTTPStatusError):
            raise UserError(f"The server at {self._address} refused: {error.response.text.strip() or error}.") from error
        if isinstance(error, httpx.HTTPError):
            raise UserError(f"The server at {self._address} does not answer ({error}): start it with 'unisono deploy server'.")

    def nodes(self) -> dict[bytes, str]:
        """Return the status of every node by its public key."""
        return {node.public_key: node.status for node in self._client.nodes()}

    def admit_only(self, public_keys: Iterable[str]) -> None:
        """Admit the nodes with these keys (lines, as OpenSSH writes them), and turns all others away for good."""
        wanted = {key_bytes(line) for line in public_keys}
        known = self._client.nodes()
        for key in wanted - {node.public_key for node in known}:
            self._client.register(key)
        for node in known:
            if node.public_key not in wanted and node.status != "unregistered":
                self._client.unregister(node.node_id)

    def start(self, app: Path, config: Mapping[str, bool | float | int | str]) -> int:
        """Start a run of the app in this directory and return Flower's number for it."""
        self._client.nodes()  # a server that does not answer is found out at once, and named
        with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
            file.write(write_toml(dict(config)))
            file.flush()
            return int(self._flwr("run", str(app), CONNECTION, "--run-config", file.name)["run-id"])

    def status(self, run_id: int) -> str:
        """Return Flower's word for the state of a run, such as ``running`` or ``finished:completed``, and why."""
        status = self._client.run_status(run_id)
        if status is None:
            return "unknown"
        *words, details = status
        return ":".join(word for word in words if word) + (f" ({details})" if details else "")

    def stop(self, run_id: int) -> None:
        """Stop a run."""
        self._client.nodes()
        self._flwr("stop", str(run_id), CONNECTION)

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        """Return what a command of ``flwr`` printed; a UserError with its reason if it failed."""
        environment = {**os.environ, **process_environment(self._home)}
        program = shutil.which("flwr", path=environment["PATH"])
        if program is None:
            raise UserError("The command 'flwr' is missing: pip install 'unisono[flower]'.")
        if not (self._home / "config.toml").is_file():
            write_connection(self._home, self._address, self._certificate)
        done = subprocess.run(
            [program, *arguments, "--format", "json"], env=environment, capture_output=True, text=True, check=False
        )
        try:
            answer = dict(json.loads(done.stdout))
            reason = str(answer.get("error-message", "it gave no reason"))
        except ValueError:
            answer, reason = {}, done.stderr.strip() or done.stdout.strip() or f"it ended with code {done.returncode}"
        if not answer.get("success"):
            raise UserError(f"'flwr {arguments[0]}' failed at {self._address}: {_last_line(reason)}")
        return answer


def key_bytes(public_key: str) -> bytes:
    """Return a public key as Flower compares it.

    Args:
        public_key: one line, as OpenSSH writes it.
    """
    return load_ssh_public_key(public_key.encode()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it gave no reason")
