"""Control a SuperLink: admit nodes, start and stop runs, ask how things stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

import httpx

from unisono.core.errors import UserError
from unisono.engines.flower.internals import SuperLinkClient
from unisono.engines.flower.nodes import key_bytes


class Control:
    """A connection to a SuperLink.

    Args:
        address: ``host:port``.
        certificate: of the authority that signed the SuperLink's; None talks without TLS.
        token: what its door asks for.
    """

    def __init__(self, address: str, certificate: Path | None, token: str | None) -> None:
        self._address = address
        self._client = SuperLinkClient(address, None if certificate is None else certificate.read_bytes(), token)

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
        return self._client.start_run(app, config)

    def status(self, run_id: int) -> str:
        """Return Flower's word for the state of a run, such as ``running`` or ``finished:completed``, and why."""
        status = self._client.run_status(run_id)
        if status is None:
            return "unknown"
        *words, details = status
        return ":".join(word for word in words if word) + (f" ({details})" if details else "")

    def stop(self, run_id: int) -> None:
        """Stop a run."""
        self._client.stop_run(run_id)
