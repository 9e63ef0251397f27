"""Signatures of clients by their node keys (ECDSA on P-384), for secure sums."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_private_key, load_ssh_public_key

from unisono.core.errors import UserError

PURPOSE = b"unisono secure sum\n"
"""Beginning of all that is signed here: the same key signs times for Flower."""


class KnownKeys:
    """Public keys of clients.

    Args:
        keys: by client: one line as OpenSSH writes it, or PEM.
    """

    def __init__(self, keys: Mapping[int, str | bytes]) -> None:
        self._keys = keys

    def verify(self, client_id: int, data: bytes, signature: bytes) -> bool:
        """Return whether a known client signed these bytes."""
        if client_id not in self._keys:
            return False
        try:
            key = self._keys[client_id]
            public = load_pem_public_key(key) if isinstance(key, bytes) else load_ssh_public_key(key.encode())
            if not isinstance(public, ec.EllipticCurvePublicKey):
                return False
            public.verify(signature, PURPOSE + data, ec.ECDSA(hashes.SHA384()))
        except (InvalidSignature, ValueError):
            return False
        return True


class NodeIdentity(KnownKeys):
    """A client's own key, and the public keys that its owner has of the others.

    Args:
        key: file of the private key, as OpenSSH writes it.
        keys: public keys by client.
    """

    def __init__(self, key: Path, keys: Mapping[int, str | bytes]) -> None:
        super().__init__(keys)
        if not key.is_file():
            raise UserError(f"This needs a key of the client, {key}, as 'unisono deploy init' makes them.")
        private = load_ssh_private_key(key.read_bytes(), None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise UserError(f"{key} must be an elliptic-curve key, as 'unisono deploy init' makes them.")
        self._private = private

    def sign(self, data: bytes) -> bytes:
        """Return the client's signature."""
        return self._private.sign(PURPOSE + data, ec.ECDSA(hashes.SHA384()))
