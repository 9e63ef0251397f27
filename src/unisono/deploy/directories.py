"""Directories of a federation: one for the server, one for each client, and the authority's, which stays offline."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from unisono.core.config import Section, make_section, parse_json, read_toml, write_toml
from unisono.core.errors import UserError
from unisono.deploy.certificates import write_secret
from unisono.deploy.policy_tables import Policy, with_new_keys

SERVER_FILE = "server.toml"
CLIENT_FILE = "client.toml"
DATABASE = "state.db"
"""Flower's, in the server's directory."""
WANTED_FILE = "wanted.json"
"""In a run directory: the run is to be continued until it is finished."""
PAUSED_FILE = "paused"
"""In the directory of a server or a client: nothing goes on there until the file is gone."""
VERSION_FILE = "server.version"
"""In a client's directory: the version of unisono that the server ran when it last asked."""
START_SECONDS = 60.0
"""Time that an app has from its start until it locks its run directory."""
S = TypeVar("S", bound=Section)


class DeployServerConfig(Section):
    """Options of the server, ``server.toml``: its address, and the clients it waits for."""

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 is every IPv4 address of the machine")
    port: int = Field(9092, ge=1, le=65535, description="port to listen on")
    insecure: bool = Field(False, description="no TLS and no proof of who a client is")
    num_clients: int = Field(ge=1, description="size of the federation")
    min_clients: int | None = Field(None, ge=1, description="clients to wait for before a run begins; unset: all with a key")
    start_timeout: float = Field(300.0, gt=0, description="seconds to wait for them; then a run begins with whoever is there")
    max_disk_gib: float = Field(20.0, gt=0, description="GiB that unread answers of clients may take on the server's disk")
    metrics: str | None = Field(None, description="host:port for /metrics (Prometheus) and /healthz; unset: none")
    labelled_data: str | None = Field(
        None, description="folder (one subfolder per class) or .npz with labels, for the usual probes"
    )


class ClientConfig(Policy):
    """Options of a client, ``client.toml``: its number, the server's address, and the owner's policy in tables."""

    client_id: int = Field(ge=0, description="number in the federation, from 0")
    server: str = Field(description="host:port of the server")
    insecure: bool = Field(False, description="no TLS and no proof of who the client is")
    port: int = Field(9094, ge=1, le=65535, description="port on this machine that the client's two processes share")
    poll_interval: float = Field(
        0.5, ge=0.05, le=60, description="seconds between two looks for work; each waits at the server for some"
    )
    data: str | None = Field(None, description="folder of images, or .npz of images or series")
    bits: int | None = Field(None, ge=8, le=16, description="bits that images in words of 16 use, such as 12; unset: 16")
    layout: str = Field("flat", description="flat, or classes where the folder has one subfolder per class")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:INDEX or mps")
    metrics: str | None = Field(None, description="host:port for /metrics (Prometheus) and /healthz; unset: none")


@dataclass(frozen=True)
class ServerDirectory:
    """Paths and config of a server.

    Args:
        path: the directory.
        config: its ``server.toml``.
    """

    path: Path
    config: DeployServerConfig

    @staticmethod
    def open(path: Path) -> ServerDirectory:
        """Return a directory that ``unisono deploy init`` made; the whole federation's is taken for its server's."""
        path = path / "server" if (path / "server" / SERVER_FILE).is_file() else path
        return ServerDirectory(path.resolve(), _read(path / SERVER_FILE, DeployServerConfig, "server"))

    @property
    def address(self) -> str:
        """Address at which the server is reached from its own machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(self.config.host, self.config.host)
        return f"{host}:{self.config.port}"

    @property
    def certificate(self) -> Path | None:
        """The authority's certificate, None without TLS."""
        return None if self.config.insecure else self.path / "ca.crt"

    @property
    def keys(self) -> dict[int, str]:
        """Public keys of all clients, one line each."""
        return read_keys(self.path / "nodes.json")

    @property
    def key_file(self) -> Path:
        """The file that the keys are in."""
        return self.path / "nodes.json"

    @property
    def former_file(self) -> Path:
        """The file with keys that clients have replaced a short time ago."""
        return self.path / "former.json"

    @property
    def former_keys(self) -> dict[int, tuple[str, datetime]]:
        """Keys that clients have replaced, and the time until which they are taken."""
        try:
            values = parse_json(self.former_file.read_text()) if self.former_file.is_file() else {}
            return {int(client): (str(one["key"]), datetime.fromisoformat(one["until"])) for client, one in values.items()}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(f"{self.former_file} is damaged ({error}): remove it; it holds no key that is in force.") from error

    @property
    def admitted_keys(self) -> dict[str, int]:
        """Public keys that the server takes requests from, and the client that each belongs to."""
        now = datetime.now(UTC)
        former = {line: client for client, (line, until) in self.former_keys.items() if until > now}
        return {**former, **{line: client for client, line in self.keys.items()}}

    @property
    def token(self) -> str:
        """Secret that commands show the server's Control API; made when it is first needed."""
        return own_secret(self.path / "control.token").hex()

    @property
    def secret(self) -> Path:
        """File with the secret by which the server's processes recognise each other; made when it is first needed."""
        path = self.path / "runtime.secret"
        own_secret(path)
        return path

    @property
    def app(self) -> Path:
        """The Flower app."""
        return self.path / "app"

    @property
    def runs(self) -> Path:
        """Run directories."""
        return self.path / "runs"

    @property
    def flower(self) -> Path:
        """Flower's home."""
        return self.path / "flower"


@dataclass(frozen=True)
class ClientDirectory:
    """Paths and config of a client.

    Args:
        path: the directory.
        config: its ``client.toml``.
    """

    path: Path
    config: ClientConfig

    @staticmethod
    def open(path: Path) -> ClientDirectory:
        """Return a directory that ``unisono deploy init`` made."""
        file = path / CLIENT_FILE
        if file.is_file() and os.name == "posix" and file.stat().st_mode & 0o022:
            raise UserError(f"{file} can be written by others than its owner: take that right away with 'chmod 600 {file}'.")
        return ClientDirectory(path.resolve(), _read(file, ClientConfig, "client", with_new_keys))

    @property
    def certificate(self) -> Path | None:
        """The authority's certificate, None without TLS."""
        return None if self.config.insecure else self.path / "ca.crt"

    @property
    def key(self) -> Path:
        """The private key that proves who the client is, and that neighbours encrypt for."""
        return self.path / "node.key"

    @property
    def keys(self) -> dict[int, str]:
        """Public keys of all clients, one line each."""
        return read_keys(self.path / "nodes.json")

    @property
    def secret(self) -> Path:
        """File with the secret by which the client's two processes recognise each other."""
        return self.path / "runtime.secret"

    @property
    def own_secret(self) -> bytes:
        """32 random bytes that never leave the client; made when they are first needed."""
        return own_secret(self.path / "own.secret")

    @property
    def states(self) -> Path:
        """Local states of all runs."""
        return self.path / "states"

    @property
    def flower(self) -> Path:
        """Flower's home."""
        return self.path / "flower"


def is_wanted(path: Path) -> bool:
    """Return whether the run in a directory is to be continued until it is finished."""
    return (path / WANTED_FILE).is_file()


def own_secret(path: Path) -> bytes:
    """Return the 32 random bytes in a file that nobody but its owner may read; make it if there is none."""
    if not path.is_file():
        draft = path.with_name(f".{path.name}.{os.getpid()}.new")
        write_secret(draft, secrets.token_bytes(32))
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)  # whoever comes first has made it
        draft.unlink()
    return path.read_bytes()


def write_keys(path: Path, keys: Mapping[int, str]) -> None:
    """Write the public keys of all clients, at once or not at all."""
    from unisono.runs.files import write_atomically  # it imports torch, which status can do without

    write_atomically(path, (json.dumps({str(client): key for client, key in keys.items()}, indent=1) + "\n").encode())


def read_keys(path: Path) -> dict[int, str]:
    """Return the public keys of all clients."""
    try:
        return {int(client): str(key) for client, key in parse_json(path.read_text()).items()}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is missing or damaged ({error}): copy it from the server's directory.") from error


def config_text(section: Section) -> str:
    """Return a section as a commented TOML file: every option with what it means, tables last."""
    lines, tables = [], []
    values = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            tables.append(f"\n# {first_line(value)}\n[{name}]\n{config_text(value)}")
            continue
        lines.append(f"# {field.description}")
        lines.append(f"# {name} =" if value is None else write_toml({name: values[name]}).strip())
    return "\n".join([*lines, ""]) + "".join(tables)


def first_line(section: Section) -> str:
    """Return what a table is about."""
    return (type(section).__doc__ or "").split(":")[0]


def write_config(path: Path, section: Section) -> None:
    """Write a config file that only its owner may read or change."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(config_text(section), encoding="utf-8")
    draft.chmod(0o600)
    draft.replace(path)


def _read(path: Path, kind: type[S], name: str, convert: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict) -> S:
    if not path.is_file():
        raise UserError(f"There is no {path}: make a federation with 'unisono deploy init DIRECTORY', or go to its directory.")
    return make_section(kind, convert(read_toml(path)), name)
