"""Progress of reading, embedding and drawing: a bar in a terminal, a line now and then anywhere else; on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from unisono.core.progress import listening

SLOW = 3.0
"""Seconds of work before anything is shown."""
PAUSE = {True: 0.2, False: 10.0}
"""Seconds between two updates, in a terminal and elsewhere."""


@contextmanager
def shown_progress(quiet: bool = False) -> Iterator[None]:
    """Show how far slow work inside the block has come.

    Args:
        quiet: show nothing.
    """
    shown = WorkProgress(sys.stderr.isatty())
    with listening((lambda what, done, total: None) if quiet else shown):
        try:
            yield
        finally:
            shown.clear()


class WorkProgress:
    """Listener that writes lines to stderr.

    Args:
        redrawn: whether one line is drawn again and again.
        slow: seconds of work before anything is shown.
    """

    def __init__(self, redrawn: bool, slow: float = SLOW) -> None:
        self._redrawn = redrawn
        self._slow = slow
        self._what, self._first, self._done, self._total = "", 0, 0, 0
        self._begun = self._shown = time.monotonic()
        self._visible = False

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if (what, total) != (self._what, self._total) or done < self._done or self._done == self._total:
            self.clear()
            self._what, self._total, self._first, self._begun, self._shown = what, total, done, now, -math.inf
        self._done = done
        if now - self._begun < self._slow or now - self._shown < PAUSE[self._redrawn]:
            return
        self._shown, self._visible = now, True
        # What was done before, such as the rounds before a probe, took other time than this.
        left = (now - self._begun) * (total - done) / max(done - self._first, 1)
        line = f"{what}: {done:,} of {total:,} ({done / max(total, 1):.0%}), about {left:.0f} s left"
        print(f"\r\x1b[K{line}" if self._redrawn else line, end="" if self._redrawn else "\n", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        if self._visible and self._redrawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._visible = False
