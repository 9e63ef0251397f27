"""SuperNode that polls for messages more often: ``python -m unisono.engines.flower.supernode SECONDS ARGUMENTS``.

Flower's own rests for three seconds whenever there is nothing to do, and has no option for it, so every phase of a round begins
up to three seconds late.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from unisono.engines.flower.internals import serve_supernode

OWN_CLIENT = 0.05
"""Seconds between two looks for the answer of the client's own process, which are looks in memory."""


class _CappedSleep:
    """The module ``time`` with shorter sleeps."""

    def __init__(self, longest: float) -> None:
        self._longest = longest

    def sleep(self, seconds: float) -> None:
        """Sleeps for as long as it is told, but never longer than the longest; pauses below a second are for the own client."""
        time.sleep(min(seconds, self._longest if seconds >= 1 else OWN_CLIENT))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


if __name__ == "__main__":
    serve_supernode(sys.argv[2:], _CappedSleep(float(sys.argv[1])))
