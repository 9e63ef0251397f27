"""A new authority in the place of the old one, in two steps, so that clients trust both in between.

The list of members carries the certificates to trust. The old authority signs the list that names both, and clients take it
with the next run. The new authority signs the list that names it alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unisono.core.errors import UserError
from unisono.deploy.certificates import SERVER_DAYS, Authority, private_pem, write_secret
from unisono.deploy.directories import ServerDirectory
from unisono.deploy.joining import members_in_force, rotate_certificate
from unisono.deploy.members import AUTHORITY_FILE, MEMBERS_FILE, trusted_authorities
from unisono.deploy.server_audit import record
from unisono.runs.files import write_atomically


def begin_change(server: ServerDirectory, old: Authority, path: Path) -> Authority:
    """Make a new authority, and have it trusted beside the old one; return it. A repeated call changes nothing.

    Args:
        server: its directory.
        old: the authority so far, which signs the list.
        path: directory for the new one; taken as it is if it holds one already.
    """
    if server.config.insecure:
        raise UserError("There is no authority to change: server.toml says insecure = true.")
    if old.certificate not in trusted_authorities(server.path):
        raise UserError("--authority must be the authority that the server trusts now: it is another.")
    new = Authority.open(path) if (path / "ca.key").is_file() else _make(path, server)
    if new.certificate in trusted_authorities(server.path):
        return new
    both = (old.pem.decode(), new.pem.decode())
    _publish(server, old, both)
    write_atomically(server.path / AUTHORITY_FILE, "".join(both).encode())
    record(server.path, "authority", "a new one is trusted beside the old one")
    return new


def finish_change(server: ServerDirectory, new: Authority) -> None:
    """Trust the new authority alone, and give the server a certificate of it; restart the server if it runs."""
    if new.certificate not in trusted_authorities(server.path):
        raise UserError("The server does not trust this authority yet: call this without --finish first.")
    _publish(server, new, (new.pem.decode(),))
    write_atomically(server.path / AUTHORITY_FILE, new.pem)
    record(server.path, "authority", "the new one is trusted alone")
    rotate_certificate(server, new, SERVER_DAYS)


def _make(path: Path, server: ServerDirectory) -> Authority:
    new = Authority.create(f"unisono federation {server.path.parent.name}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    (path / AUTHORITY_FILE).write_bytes(new.pem)
    write_secret(path / "ca.key.new", private_pem(new.key))
    (path / "ca.key.new").replace(path / "ca.key")
    return new


def _publish(server: ServerDirectory, signer: Authority, authorities: tuple[str, ...]) -> None:
    members = members_in_force(server)
    if members.authorities != authorities:
        members = replace(members, version=members.version + 1, authorities=authorities)
        write_atomically(server.path / MEMBERS_FILE, members.signed(signer).encode())
