"""The list of a federation's members: number and public key of every client, signed by the authority.

The server hands the list out with its first question of a run. A client believes it for the signature, not for the server's
word, and never goes back to an older one.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from unisono.core.config import parse_json
from unisono.core.errors import UserError
from unisono.deploy.certificates import Authority
from unisono.deploy.directories import ClientDirectory, write_keys
from unisono.deploy.policy_tables import canonical
from unisono.runs.files import write_atomically

MEMBERS_FILE = "members.json"
AUTHORITY_FILE = "ca.crt"
"""Certificates of the authorities that are trusted: one, or two while one follows the other."""
PURPOSE = b"unisono members\n"


@dataclass(frozen=True)
class Members:
    """A list of members.

    Args:
        version: higher than that of every list before.
        clients: public key by number, one line each as OpenSSH writes it.
        removed: the day on which a client was removed, by its number; numbers are not used again.
        authorities: certificates, as PEM, of the authorities to trust from now on; empty leaves them as they are.
    """

    version: int = 0
    clients: Mapping[int, str] = field(default_factory=dict)
    removed: Mapping[int, str] = field(default_factory=dict)
    authorities: tuple[str, ...] = ()

    @property
    def next_number(self) -> int:
        """The number of the next client."""
        return max((*self.clients, *self.removed, -1)) + 1

    def signed(self, authority: Authority) -> str:
        """Return the list as text, with the authority's signature."""
        values = self._values()
        signature = authority.key.sign(PURPOSE + canonical(values), ec.ECDSA(hashes.SHA384()))
        return json.dumps({**values, "signature": b64encode(signature).decode()}, indent=1) + "\n"

    def _values(self) -> dict[str, Any]:
        clients = {str(client): line for client, line in sorted(self.clients.items())}
        values = {
            "version": self.version,
            "clients": clients,
            "removed": {str(c): day for c, day in sorted(self.removed.items())},
        }
        return {**values, "authorities": list(self.authorities)} if self.authorities else values


def read_members(text: str, trusted: Sequence[x509.Certificate]) -> Members:
    """Return the list in a text; raise UserError unless a trusted authority has signed it.

    Args:
        text: what ``Members.signed`` returned.
        trusted: certificates of authorities; two while one follows the other.
    """
    try:
        values = parse_json(text)
        signature = b64decode(values.pop("signature"))
        if not any(_has_signed(certificate, signature, PURPOSE + canonical(values)) for certificate in trusted):
            raise UserError("The list of members is not signed by this federation's authority.")
        clients = {int(client): str(line) for client, line in values["clients"].items()}
        removed = {int(client): str(day) for client, day in values["removed"].items()}
        authorities = tuple(str(pem) for pem in values.get("authorities", ()))
        for pem in authorities:
            x509.load_pem_x509_certificate(pem.encode())
        return Members(int(values["version"]), clients, removed, authorities)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"The list of members cannot be read ({error}): ask the operator for a new one.") from error


def _has_signed(certificate: x509.Certificate, signature: bytes, content: bytes) -> bool:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("the authority's key is of another kind")
    try:
        key.verify(signature, content, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def trusted_authorities(path: Path) -> list[x509.Certificate]:
    """Return the authorities that the directory of a server or a client trusts."""
    try:
        return x509.load_pem_x509_certificates((path / AUTHORITY_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} has no {AUTHORITY_FILE} that can be read ({error}).") from error


def stored_members(path: Path) -> Members:
    """Return the list in the directory of a server or a client; raise UserError if it is missing or not the authority's."""
    try:
        text = (path / MEMBERS_FILE).read_text()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} has no {MEMBERS_FILE} that can be read ({error}).") from error
    return read_members(text, trusted_authorities(path))


def take_members(directory: ClientDirectory, text: str) -> Members | None:
    """Put a client's list in force if it is newer than its own, and return it; None if it is not.

    Args:
        directory: the client's.
        text: the list; a UserError if it is not the authority's, or brings back a number that was removed.
    """
    own = stored_members(directory.path)
    new = read_members(text, trusted_authorities(directory.path))
    trusted = "".join(new.authorities).encode()
    is_whole = not trusted or (directory.path / AUTHORITY_FILE).read_bytes() == trusted
    if new.version < own.version or (new.version == own.version and is_whole):
        return None
    back = sorted(set(own.removed) - set(new.removed) | set(own.removed) & set(new.clients))
    if back:
        raise UserError(f"The new list of members brings back client {back[0]}, which was removed.")
    write_keys(directory.path / "nodes.json", new.clients)
    write_atomically(directory.path / MEMBERS_FILE, text.encode())
    if trusted:  # last, for the list so far is not signed by whom the new one trusts
        write_atomically(directory.path / AUTHORITY_FILE, trusted)
    return new
