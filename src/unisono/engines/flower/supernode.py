"""A SuperNode that looks for messages more often: ``python -m unisono.engines.flower.supernode SECONDS ARGUMENTS``.

Flower's own rests for three seconds whenever there is nothing to do, and has no option for it, so every phase of a round begins
up to three seconds late.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode


class _CappedSleep:
    """The module ``time`` with shorter sleeps."""

    def __init__(self, longest: float) -> None:
        self._longest = longest

    def sleep(self, seconds: float) -> None:
        """Rests for as long as it is told, but never longer than the longest."""
        time.sleep(min(seconds, self._longest))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def run_supernode(longest_rest: float, arguments: Sequence[str]) -> None:
    """Connects and serves until the process is ended.

    Args:
        longest_rest: seconds between two looks for messages.
        arguments: those of ``flower-supernode``.
    """
    start_client_internal.time = _CappedSleep(longest_rest)  # type: ignore[attr-defined, assignment]
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


if __name__ == "__main__":
    run_supernode(float(sys.argv[1]), sys.argv[2:])
