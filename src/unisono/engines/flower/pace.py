"""Deadlines of clients from the time that they took lately, so that one that is stuck costs a round little."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

REMEMBERED = 5
TIMES_MEDIAN = 3.0
SHORTEST = 60.0
"""Seconds that every client has, however fast it was."""


class Pace:
    """Time that each client took in each phase.

    Args:
        most: seconds that no client may exceed; None for no limit.
        shortest: seconds that every client has.
        now: a clock.
    """

    def __init__(self, most: float | None, shortest: float = SHORTEST, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._shortest = shortest
        self.now = now
        self._turns: dict[str, dict[int, tuple[float, ...]]] = {}  # a server of many clients has room for little more

    def took(self, client_id: int, phase: str, seconds: float) -> None:
        """Remember how long an answer took."""
        turns = self._turns.setdefault(phase, {})
        turns[client_id] = (*turns.get(client_id, ()), seconds)[-REMEMBERED:]

    def limit(self, client_id: int, phase: str) -> float | None:
        """Return the seconds that a client gets: three times its median of late, and all that there is if it is new."""
        turns = self._turns.get(phase, {}).get(client_id)
        if turns is None:
            return self._most
        wanted = max(self._shortest, TIMES_MEDIAN * median(turns))
        return wanted if self._most is None else min(wanted, self._most)
