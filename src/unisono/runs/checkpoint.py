"""Checkpoints: server state, optimiser, client states and log lengths, written whole or not at all."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.core.config import parse_json
from unisono.core.payload import Payload
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import ServerState
from unisono.runs.files import (
    explained,
    payload_from_safetensors,
    payload_to_safetensors,
    remove_tree,
    sync_directory,
    write_and_sync,
)

MANIFEST = "checkpoint.json"


class DamagedError(Exception):
    """Damaged checkpoint; the message says why it cannot be read."""


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint, besides client states.

    Args:
        state: the server's state.
        log_lengths: length in bytes of every log at that moment.
    """

    state: ServerState
    log_lengths: Mapping[str, int]


class Checkpoints:
    """The checkpoints of a run, newest last.

    Args:
        directory: one subdirectory per checkpoint.
        keep: how many are kept.
    """

    def __init__(self, directory: Path, keep: int = 2) -> None:
        self._directory = directory
        self._keep = keep

    def rounds(self) -> list[int]:
        """Return the rounds that can be restored, ascending."""
        if not self._directory.is_dir():
            return []
        numbers = (path.name.removeprefix("round-") for path in self._directory.glob("round-*") if path.is_dir())
        return sorted(int(number) for number in numbers if number.isdigit())

    def save(self, state: ServerState, store: ClientStateStore, log_lengths: Mapping[str, int]) -> None:
        """Write a checkpoint and remove the oldest beyond ``keep``."""
        target = self._path(state.round)
        temporary = target.with_name(f".{target.name}.tmp")
        with explained(target):
            try:
                remove_tree(temporary)
                (temporary / "clients").mkdir(parents=True)
                self._write(temporary, state, store, log_lengths)
                remove_tree(target)
                temporary.rename(target)
                sync_directory(self._directory)
            except BaseException:
                remove_tree(temporary)
                raise
        for round in self.rounds()[: -self._keep]:
            remove_tree(self._path(round))

    def load(self, round: int, store: ClientStateStore) -> Checkpoint:
        """Restore one checkpoint, client states into ``store``; raise a DamagedError if it is not as it was written."""
        directory = self._path(round)
        try:
            manifest = _manifest(directory)
            payloads = {name: _payload(directory, manifest, name) for name in manifest["files"]}
            server, optimizer = payloads["server.safetensors"], payloads["optimizer.safetensors"]
            state = ServerState(manifest["round"], server, optimizer, manifest["releases"])
            clients = {int(client): payloads[_client_file(int(client))] for client in manifest["clients"]}
            checkpoint = Checkpoint(state, manifest["logs"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DamagedError(f"checkpoint {directory.name} is damaged ({error})") from error
        for client_id, payload in clients.items():
            store.restore(client_id, payload, manifest["clients"][str(client_id)])
        return checkpoint

    def server_at(self, round: int) -> Payload:
        """Return the server's payload alone."""
        directory = self._path(round)
        try:
            return _payload(directory, _manifest(directory), "server.safetensors")
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DamagedError(f"checkpoint {directory.name} is damaged ({error})") from error

    def _write(self, directory: Path, state: ServerState, store: ClientStateStore, log_lengths: Mapping[str, int]) -> None:
        previous, manifest = self._previous_manifest(state.round)
        # With many clients a manifest is large: the new one is made of the old, so that memory holds one of them.
        files, versions = manifest["files"], manifest["clients"]
        for client in [client for client in versions if int(client) not in store]:
            del files[_client_file(int(client))], versions[client]
        for name, payload in (("server.safetensors", state.server), ("optimizer.safetensors", state.optimizer)):
            files[name] = _write_sum(directory / name, payload)
        for client_id in store:
            name, version = _client_file(client_id), store.version(client_id)
            if versions.get(str(client_id)) == version:
                _link(previous / name, directory / name)
            else:
                files[name] = _write_sum(directory / name, store.get(client_id))
                versions[str(client_id)] = version
        manifest |= {"round": state.round, "releases": state.num_releases, "logs": dict(log_lengths)}
        content = bytearray()
        for part in json.JSONEncoder().iterencode(manifest):  # dumps holds all parts at a time, which is seven times as much
            content += part.encode()
        content += f"\n{zlib.crc32(content)}".encode()
        write_and_sync(directory / MANIFEST, content)
        sync_directory(directory / "clients")
        sync_directory(directory)

    def _previous_manifest(self, before: int) -> tuple[Path, dict[str, Any]]:
        """Return the checkpoint whose files of unchanged clients are linked instead of written again; an empty one if none.

        It is the last but one before a round, where more than one is kept: two neighbours never share a file, so that damage to
        one leaves the other good. Later ones are what a resumed run passed over as damaged.
        """
        to_pass = 1 if self._keep > 1 else 0
        for round in reversed([round for round in self.rounds() if round < before]):
            with suppress(OSError, ValueError, LookupError, TypeError):
                if to_pass == 0:
                    return self._path(round), _manifest(self._path(round))
                _manifest(self._path(round))
                to_pass -= 1
        return self._directory, {"files": {}, "clients": {}}

    def _path(self, round: int) -> Path:
        return self._directory / f"round-{round:06d}"


def _client_file(client_id: int) -> str:
    return f"clients/{client_id}.safetensors"


def _link(source: Path, target: Path) -> None:
    """Link a file under a second name; copy it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        write_and_sync(target, source.read_bytes())


def _write_sum(path: Path, payload: Payload) -> tuple[int, int]:
    content = payload_to_safetensors(payload)
    write_and_sync(path, content)
    return len(content), zlib.crc32(content)


def _manifest(directory: Path) -> dict[str, Any]:
    content, _, checksum = (directory / MANIFEST).read_bytes().rpartition(b"\n")
    if checksum != str(zlib.crc32(content)).encode():
        raise ValueError(f"the checksum of {MANIFEST} is wrong")
    manifest: dict[str, Any] = parse_json(content)
    if directory.name != f"round-{manifest['round']:06d}":
        raise ValueError(f"{MANIFEST} is that of round {manifest['round']}")
    return manifest


def _payload(directory: Path, manifest: dict[str, Any], name: str) -> Payload:
    size, checksum = manifest["files"][name]
    return payload_from_safetensors(_verified(directory / name, size, checksum))


def _verified(path: Path, size: int, checksum: int) -> bytes:
    content = path.read_bytes()
    if len(content) != size:
        raise ValueError(f"{path.name} has {len(content)} bytes, expected {size}")
    if zlib.crc32(content) != checksum:
        raise ValueError(f"the checksum of {path.name} is wrong")
    return content
