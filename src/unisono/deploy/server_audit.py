"""The list of everything that was done to a server, ``audit.jsonl`` in its directory: who, what, to what. A chain."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Literal

from unisono.core.errors import UserError
from unisono.deploy.chain import Chain, DamagedChainError, Line

AUDIT = "audit.jsonl"
START = b"unisono server\n"
Action = Literal["init", "start", "add", "remove", "rotate", "authority", "run", "stop", "pause", "fetch", "backup"]


def record(path: Path, action: Action, what: str = "") -> None:
    """Write down what was done, with the account that did it.

    Args:
        path: the server's directory.
        action: a word for it.
        what: the client, run or file that it was done to.
    """
    server_chain(path).append({"actor": [os.getuid(), _account()], "action": action, "object": what})


def server_chain(path: Path) -> Chain:
    """Return the list of a server; raise a UserError that says what to do about a damaged one."""
    try:
        return Chain(path / AUDIT, START)
    except DamagedChainError as error:
        raise UserError(
            f"{error} Keep it as evidence, and begin a new one with 'mv {path / AUDIT} {path / AUDIT}.damaged'."
        ) from error


def sentence(line: Line) -> str:
    """Return a line as people read it."""
    if "action" not in line:
        return f"{line['time']}  {line.get('kind')}"
    number, name = line["actor"]
    return f"{line['time']}  {name} ({number})  {line['action']} {line['object']}".rstrip()


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in a container
        return ""
