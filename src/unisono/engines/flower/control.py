"""The SuperLink's Control API: admit nodes, start and stop runs, ask how things stand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.serde import fab_to_proto, run_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from unisono.core.errors import UserError


class Control:
    """A connection to a SuperLink's Control API.

    Args:
        address: ``host:port``.
        certificate: of the authority that signed the SuperLink's; None talks without TLS.
    """

    def __init__(self, address: str, certificate: Path | None) -> None:
        self._address = address
        self._client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=certificate is None,
            root_certificates=None if certificate is None else certificate.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def __enter__(self) -> Control:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()
        if isinstance(error, httpx.HTTPStatusError):
            raise UserError(f"The server at {self._address} refused: {error.response.text.strip() or error}.") from error
        if isinstance(error, httpx.HTTPError):
            raise UserError(f"The server at {self._address} does not answer ({error}): start it with 'unisono deploy server'.")

    def admit(self, public_key: str) -> bool:
        """Registers a node by its public key (one line, as OpenSSH writes it); False if it was known already."""
        with suppress(httpx.HTTPStatusError):
            self._client.RegisterNode(RegisterNodeRequest(public_key=key_bytes(public_key)))
            return True
        return False

    def nodes(self) -> dict[bytes, str]:
        """Status by public key."""
        listed = self._client.ListNodes(ListNodesRequest()).nodes_info
        return {node.public_key: node.status for node in listed}

    def dismiss_others(self, public_keys: Iterable[str]) -> None:
        """Turns away for good every node but those with one of these keys."""
        kept = {key_bytes(line) for line in public_keys}
        for node in self._client.ListNodes(ListNodesRequest()).nodes_info:
            if node.public_key not in kept and node.status != "unregistered":
                self._client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))

    def start(self, app: Path, config: Mapping[str, bool | float | int | str]) -> int:
        """Starts a run of the app in this directory and returns Flower's number for it."""
        from flwr.cli.build import build_fab_from_disk  # half as heavy as the rest of Flower

        bundle = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(config)), federation="")
        response = self._client.StartRun(request)
        if not response.HasField("run_id"):
            raise UserError(f"The server at {self._address} did not start the run.")
        return int(response.run_id)

    def status(self, run_id: int) -> str:
        """Flower's word for where a run stands, such as ``running`` or ``finished:completed``, and why."""
        found = self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict
        if run_id not in found:
            return "unknown"
        status = run_from_proto(found[run_id]).status
        words = [word for word in (status.status, status.sub_status) if word]
        return ":".join(words) + (f" ({status.details})" if status.details else "")

    def stop(self, run_id: int) -> None:
        """Stops a run."""
        self._client.StopRun(StopRunRequest(run_id=run_id))


def key_bytes(public_key: str) -> bytes:
    """A public key as Flower compares it.

    Args:
        public_key: one line, as OpenSSH writes it.
    """
    return public_key_to_bytes(load_ssh_public_key(public_key.encode()))  # type: ignore[arg-type]
