"""Sites that join, change their key and leave: the site makes its own key, the operator signs, no other site does anything.

A request goes from the site to the operator, a welcome file back. Neither holds a secret. Owner and operator read fingerprints
to each other by another way than the files took.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from unisono.core.config import make_section, parse_json
from unisono.core.errors import UserError
from unisono.deploy.certificates import Authority, certified_names, make_node_key, write_secret
from unisono.deploy.directories import (
    CLIENT_FILE,
    SERVER_FILE,
    ClientConfig,
    ClientDirectory,
    ServerDirectory,
    config_text,
    write_keys,
)
from unisono.deploy.ledger import keep_first_key
from unisono.deploy.members import MEMBERS_FILE, Members, read_members, stored_members, trusted_authorities
from unisono.deploy.policy_tables import canonical, strict_tables
from unisono.deploy.server_audit import record
from unisono.deploy.services import write_start_files
from unisono.deploy.supervisor import restart_tasks
from unisono.runs.files import write_atomically

REQUEST_FILE = "request.json"
FORMER_HOURS = 24
NEW_KEY = "node.key.new"


@dataclass(frozen=True)
class Request:
    """A site's wish to join, or to change its key.

    Args:
        key: public, one line.
        name: of the site, for people.
        client: its number, if it has one already.
    """

    key: str
    name: str
    client: int | None = None

    def signed(self, *private_keys: bytes) -> str:
        """Return the request as text, signed with the new key and, if there is one, with the key so far."""
        values = {"key": self.key, "name": self.name, "client": self.client}
        signatures = [
            base64.b64encode(_private(pem).sign(canonical(values), ec.ECDSA(hashes.SHA384()))) for pem in private_keys
        ]
        return json.dumps({**values, "signatures": [signature.decode() for signature in signatures]}, indent=1) + "\n"


def fingerprint(key: str) -> str:
    """Return the fingerprint of a public key, as ``ssh-keygen -l`` shows it."""
    return _fingerprint(base64.b64decode(key.split()[1]))


def authority_fingerprint(certificate: x509.Certificate) -> str:
    """Return the fingerprint of an authority's certificate."""
    return _fingerprint(certificate.public_bytes(serialization.Encoding.DER))


def join(path: Path, name: str) -> str:
    """Make a client's directory with a key of its own and a request, and return the key's fingerprint."""
    if (path / CLIENT_FILE).exists():
        raise UserError(f"{path} is a client already: change its key with 'unisono deploy rotate {path}'.")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    if not (path / NEW_KEY).is_file():
        _write_new_key(path)
    key = public_line((path / NEW_KEY).read_bytes())
    write_atomically(path / REQUEST_FILE, Request(key, name).signed((path / NEW_KEY).read_bytes()).encode())
    return fingerprint(key)


def rotate_key(directory: ClientDirectory) -> str:
    """Make a new key for a client and a request that both keys sign; return the new key's fingerprint."""
    if directory.config.insecure:
        raise UserError("There is no key to change: client.toml says insecure = true.")
    if not (directory.path / NEW_KEY).is_file():
        _write_new_key(directory.path)
    new = (directory.path / NEW_KEY).read_bytes()
    request = Request(public_line(new), "", directory.config.client_id)
    write_atomically(directory.path / REQUEST_FILE, request.signed(new, directory.key.read_bytes()).encode())
    return fingerprint(request.key)


def members_in_force(server: ServerDirectory) -> Members:
    """Return the list of members for the authority to sign next, without those that were turned away without its signature."""
    members = stored_members(server.path)
    return _without(members, members.clients.keys() - server.keys.keys())


def add(
    server: ServerDirectory, authority: Authority, request_file: Path, told: str, host: str | None, at_once: bool = False
) -> tuple[int, Path]:
    """Add a site, or put its new key in force; return its number and the welcome file to send back.

    A repeated call with the same request changes nothing and writes the same file.

    Args:
        server: its directory.
        authority: signs the new list.
        request_file: the site's.
        told: the fingerprint that the site's owner has read out.
        host: name or address that the client reaches the server by; the first in the server's certificate where None.
        at_once: the site's former key is refused from now on, for it was stolen.
    """
    if server.config.insecure:
        raise UserError("There are no keys to add: server.toml says insecure = true, so anyone may join.")
    stored, members = stored_members(server.path), members_in_force(server)
    request = _read_request(request_file, members)
    if fingerprint(request.key) != told:
        raise UserError(f"--fingerprint is {told}, and the key in {request_file} has another: ask the owner again.")
    known = {line: client for client, line in members.clients.items()}
    client = known.get(request.key, members.next_number if request.client is None else request.client)
    if request.key not in known:
        if request.client is not None:
            _keep_former(server, client, members.clients[client])
        members = replace(members, clients={**members.clients, client: request.key})
    if at_once:
        _keep_former(server, client, None)
    # Before the list: a member without a key is one that was turned away.
    write_keys(server.key_file, members.clients)
    if members != stored:
        members = replace(members, version=stored.version + 1)
        write_atomically(server.path / MEMBERS_FILE, members.signed(authority).encode())
    if client >= server.config.num_clients:
        grown = server.config.model_copy(update={"num_clients": client + 1})
        write_atomically(server.path / SERVER_FILE, config_text(grown).encode())
    names = certified_names((server.path / "server.crt").read_bytes())
    welcome = {
        "client": client,
        "server": f"{_bracketed(host or names[0])}:{server.config.port}",
        "authority": authority.pem.decode(),
        "members": (server.path / MEMBERS_FILE).read_text(),
    }
    path = request_file.with_name(f"welcome-{client}.json")
    record(server.path, "add", f"client {client}, key {fingerprint(request.key)}")
    write_atomically(path, (json.dumps(welcome, indent=1) + "\n").encode())
    return client, path


def accept(path: Path, welcome_file: Path, told: str | None) -> int:
    """Put a welcome file in force and return the client's number.

    Args:
        path: the client's directory, as ``join`` or ``rotate_key`` left it.
        welcome_file: the operator's.
        told: the authority's fingerprint that the operator has read out; not needed by a client that knows the authority.
    """
    try:
        welcome: dict[str, Any] = parse_json(welcome_file.read_text())
        client, server, pem = int(welcome["client"]), str(welcome["server"]), str(welcome["authority"]).encode()
        certificate, text = x509.load_pem_x509_certificate(pem), str(welcome["members"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{welcome_file} is no welcome file of an operator ({error}).") from error
    members = read_members(text, [certificate])
    key_file = path / NEW_KEY if (path / NEW_KEY).is_file() else path / "node.key"
    if not key_file.is_file():
        raise UserError(f"{path} has no key of its own: make one with 'unisono deploy join {path}'.")
    if members.clients.get(client) != public_line(key_file.read_bytes()):
        raise UserError(f"{welcome_file} is not for this client: its key stands for no member there.")
    if (path / CLIENT_FILE).is_file():
        if certificate not in trusted_authorities(path) and told != authority_fingerprint(certificate):
            raise UserError(
                f"{welcome_file} comes from another authority than this client's: if the operator says that it has changed, "
                "give its fingerprint with --fingerprint."
            )
        if members.version < stored_members(path).version:
            raise UserError(f"{welcome_file} is older than this client's list of members: ask the operator to repeat 'add'.")
    elif told != authority_fingerprint(certificate):
        raise UserError("--fingerprint must be the authority's fingerprint, which the operator reads to you: it differs.")
    write_atomically(path / "ca.crt", "".join(members.authorities).encode() or pem)
    write_keys(path / "nodes.json", members.clients)
    write_atomically(path / MEMBERS_FILE, text.encode())
    if not (path / "runtime.secret").is_file():
        write_secret(path / "runtime.secret", secrets.token_bytes(32))
    if key_file.name == NEW_KEY:
        keep_first_key(path)
        (path / "node.pub").write_text(members.clients[client] + "\n")
        key_file.replace(path / "node.key")
    if not (path / CLIENT_FILE).is_file():
        write_start_files(path, "client")
        tables = strict_tables(len(members.clients))
        config = make_section(ClientConfig, {"client_id": client, "server": server, **tables}, "client")
        write_atomically(path / CLIENT_FILE, config_text(config).encode())
    (path / REQUEST_FILE).unlink(missing_ok=True)
    restart_tasks(path)
    return client


def remove(server: ServerDirectory, client: int, authority: Authority | None) -> bool:
    """Turn a client away for good; return whether the others will hear of it, which takes the authority's signature."""
    if server.config.insecure:
        raise UserError("There is no key to remove: server.toml says insecure = true, so anyone may join.")
    keys = server.keys
    members = stored_members(server.path)
    if client not in keys and client not in members.clients:
        raise UserError(f"There is no key of client {client}. Known: {', '.join(map(str, sorted(keys))) or 'none'}.")
    write_keys(server.key_file, {number: line for number, line in keys.items() if number != client})
    _keep_former(server, client, None)
    record(server.path, "remove", f"client {client}")
    if authority is None:
        return client not in members.clients
    if client in members.clients:
        members = replace(members_in_force(server), version=members.version + 1)
        write_atomically(server.path / MEMBERS_FILE, members.signed(authority).encode())
    return True


def _without(members: Members, gone: Collection[int]) -> Members:
    """Return a list of members without some, whose numbers are not used again."""
    clients = {client: line for client, line in members.clients.items() if client not in gone}
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return replace(members, clients=clients, removed={**members.removed, **dict.fromkeys(gone, today)})


def rotate_certificate(server: ServerDirectory, authority: Authority, days: int) -> None:
    """Give the server a new key and a certificate for the same names, and restart it if it runs."""
    if server.config.insecure:
        raise UserError("There is no certificate to change: server.toml says insecure = true.")
    key, certificate = authority.certify(certified_names((server.path / "server.crt").read_bytes()), days)
    write_secret(server.path / "server.key.new", key)
    write_atomically(server.path / "server.crt", certificate)
    (server.path / "server.key.new").replace(server.path / "server.key")
    record(server.path, "rotate", f"server.crt, {days} days")
    restart_tasks(server.path)


def _read_request(path: Path, members: Members) -> Request:
    """Return a request whose keys have signed it."""
    try:
        values = parse_json(path.read_text())
        signatures = [base64.b64decode(text) for text in values.pop("signatures")]
        client = None if values["client"] is None else int(values["client"])
        request = Request(str(values["key"]), str(values["name"])[:100], client)
        if client is not None and client not in members.clients:
            raise UserError(f"{path} is of client {client}, which is no member: ask for a request of 'unisono deploy join'.")
        signers = [request.key] if client is None else [request.key, members.clients[client]]
        for line, signature in zip(signers, signatures, strict=True):
            key = serialization.load_ssh_public_key(line.encode())
            if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
                raise ValueError("its key is not of the kind P-384")
            key.verify(signature, canonical(values), ec.ECDSA(hashes.SHA384()))
        return request
    except InvalidSignature:
        if client is not None and members.clients.get(client) == request.key:
            return request  # put in force already: the key so far is the new one
        raise UserError(f"{path} is not signed by the key that it names: ask the site for a new one.") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{path} is no request of a site ({error}).") from error


def _keep_former(server: ServerDirectory, client: int, line: str | None) -> None:
    """Admit a client's key so far for a day more, or no longer."""
    former = {number: entry for number, entry in server.former_keys.items() if number != client}
    if line is not None:
        until = datetime.now(UTC) + timedelta(hours=FORMER_HOURS)
        former[client] = (line, until)
    values = {str(number): {"key": key, "until": until.isoformat()} for number, (key, until) in former.items()}
    write_atomically(server.former_file, (json.dumps(values, indent=1) + "\n").encode())


def _write_new_key(path: Path) -> None:
    write_secret(path / f"{NEW_KEY}.draft", make_node_key()[0])
    (path / f"{NEW_KEY}.draft").replace(path / NEW_KEY)


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_ssh_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError("node.key is not of the kind P-384: make a new one with 'unisono deploy join'.")
    return key


def public_line(pem: bytes) -> str:
    """Return the public key of a private one, as one line."""
    public = _private(pem).public_key()
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def _fingerprint(content: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
