"""Encryption of tensors for their receivers: what neighbours send each other through the server.

A tensor is encrypted with a fresh key (AES-256-GCM), and that key once for each receiver, with a key that sender and receiver
derive from their node keys (ECDH on P-384, HKDF). The server relays the result and learns its size. Run, round, sender and name
are authenticated, so a sealed tensor can be opened in its place only. All clients got each other's public keys when the
federation was made, so the server cannot put its own in their place.

The sealed tensor has as many rows as the plain one, for the server counts the points that move.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from torch import Tensor

from unisono.core.config import parse_json
from unisono.core.errors import UserError
from unisono.core.forms import SEALED
from unisono.core.payload import Payload
from unisono.core.wire import from_bytes, to_bytes

NONCE_BYTES = 12


class Sealer:
    """Sealing and opening of tensors for one client.

    Args:
        client_id: whose.
        key: its private key, a file as OpenSSH writes it.
        public_keys: of all clients, one line each.
    """

    def __init__(self, client_id: int, key: Path, public_keys: Mapping[int, str]) -> None:
        private = load_ssh_private_key(key.read_bytes(), None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise UserError(f"{key} must be an elliptic-curve key, as 'unisono deploy init' makes them.")
        self._client_id = client_id
        self._private = private
        self._public_keys = public_keys

    def seal(self, tensor: Tensor, receivers: Sequence[int], place: str) -> Tensor:
        """Return the tensor, readable by its receivers alone: uint8 with as many rows.

        Args:
            tensor: at least one dimension.
            receivers: client ids.
            place: run, round and name; opening needs the same.
        """
        content = AESGCM.generate_key(256)
        nonce = os.urandom(NONCE_BYTES)
        bound = f"{place}|{self._client_id}".encode()
        body = nonce + AESGCM(content).encrypt(nonce, to_bytes(Payload({"sealed": {"tensor": tensor}})), bound)
        wrapped = {str(receiver): self._wrap(content, receiver, bound).hex() for receiver in receivers}
        header = json.dumps({"from": self._client_id, "keys": wrapped, "length": len(body)}).encode()
        whole = SEALED + len(header).to_bytes(4, "little") + header + body
        rows = max(1, len(tensor))
        width = -(-len(whole) // rows)
        padded = bytearray(whole + bytes(rows * width - len(whole)))
        return torch.frombuffer(padded, dtype=torch.uint8).reshape(rows, width)

    def open(self, sealed: Tensor, sender: int, place: str) -> Tensor:
        """Return the tensor that ``seal`` was given; raise a ValueError if sender, receiver, place or content do not match."""
        data = sealed.reshape(-1).numpy().tobytes()
        if not data.startswith(SEALED):
            raise ValueError("the tensor is not sealed")
        start = len(SEALED) + 4
        try:
            length = int.from_bytes(data[len(SEALED) : start], "little")
            header = parse_json(data[start : start + length])
            body = data[start + length : start + length + int(header["length"])]
            bound = f"{place}|{sender}".encode()
            if header["from"] != sender:
                raise ValueError(f"it is client {header['from']}'s, not client {sender}'s")
            wrapped = bytes.fromhex(header["keys"][str(self._client_id)])
            content = self._aead(sender, bound).decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], bound)
            plain = AESGCM(content).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], bound)
            return from_bytes(plain, of_others=True).groups["sealed"]["tensor"]
        except (InvalidTag, LookupError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"a sealed tensor of client {sender} cannot be opened: {error or 'it was changed'}") from error

    def shared_secret(self, other: int, purpose: bytes) -> bytes:
        """Return 32 bytes that only this client and another can derive.

        Args:
            other: client id.
            purpose: different purposes give independent secrets.
        """
        if other not in self._public_keys:
            raise ValueError(f"there is no public key of client {other}")
        public = load_ssh_public_key(self._public_keys[other].encode())
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError(f"the public key of client {other} is not one of an elliptic curve")
        agreed = self._private.exchange(ec.ECDH(), public)
        return HKDF(hashes.SHA384(), 32, salt=None, info=purpose).derive(agreed)

    def _wrap(self, content: bytes, receiver: int, bound: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._aead(receiver, bound).encrypt(nonce, content, bound)

    def _aead(self, other: int, bound: bytes) -> AESGCM:
        return AESGCM(self.shared_secret(other, b"unisono seal|" + bound))
