"""Nodes of a SuperLink, read from its database without flwr, whose import takes longer than everything else."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from unisono.core.errors import UserError

ONLINE = "online"


def nodes_in(database: Path) -> dict[bytes, str]:
    """Return the status of every node by its public key; who has said nothing for too long is offline, whatever is written.

    Args:
        database: the SuperLink's; it may be running.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=1.0)) as opened:
            rows = opened.execute("select public_key, status, online_until from node").fetchall()
    except sqlite3.Error as error:
        raise UserError(f"{database} cannot be read ({error}): start the server with 'unisono deploy server'.") from error
    now = time.time()
    return {bytes(key): "offline" if status == ONLINE and (until or 0) <= now else str(status) for key, status, until in rows}


def key_bytes(public_key: str) -> bytes:
    """Return a public key as Flower compares it.

    Args:
        public_key: one line, as OpenSSH writes it.
    """
    return load_ssh_public_key(public_key.encode()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
