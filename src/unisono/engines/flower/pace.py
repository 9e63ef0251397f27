"""Deadlines of clients from the time that they and others took lately, so that one that is stuck costs a round little."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from statistics import median

REMEMBERED = 5
LATELY = 100
"""Answers of a phase that count for clients that have never answered in it."""
TIMES_MEDIAN = 3.0
TIMES_OTHERS = 5.0
"""A client that is new gets so many times what the slowest of the others took, for the same number of samples."""
SHORTEST = 60.0
"""Seconds that every client has, however fast it was."""


class Pace:
    """Time that each client took in each phase.

    Args:
        most: seconds that no client may exceed; None for no limit.
        shortest: seconds that every client has.
        now: a clock.
        size: returns the number of samples of a client, 0 where it is not known.
    """

    def __init__(
        self,
        most: float | None,
        shortest: float = SHORTEST,
        now: Callable[[], float] = time.monotonic,
        size: Callable[[int], int] = lambda client_id: 0,
    ) -> None:
        self._most = most
        self._shortest = shortest
        self._size = size
        self.now = now
        self._turns: dict[str, dict[int, tuple[float, ...]]] = {}  # a server of many clients has room for little more
        self._lately: dict[str, deque[tuple[float, int]]] = {}
        self._missed: Counter[tuple[int, str]] = Counter()

    def took(self, client_id: int, phase: str, seconds: float) -> None:
        """Remember how long an answer took."""
        turns = self._turns.setdefault(phase, {})
        turns[client_id] = (*turns.get(client_id, ()), seconds)[-REMEMBERED:]
        usual = (median(turns[client_id]), max(1, self._size(client_id)))
        self._lately.setdefault(phase, deque(maxlen=LATELY)).append(usual)
        self._missed.pop((client_id, phase), None)

    def missed(self, client_id: int, phase: str) -> None:
        """Remember that a client has let its deadline pass: it gets twice as long until it has answered."""
        self._missed[client_id, phase] += 1

    def limit(self, client_id: int, phase: str) -> float | None:
        """Return the seconds that a client gets.

        It is three times its median of late. A new client gets what the others took, with more room; this can be known only
        while the phase goes on. Where no other has answered in this phase, it gets all that there is.
        """
        turns = self._turns.get(phase, {})
        if not turns:
            return self._most
        if client_id in turns:
            wanted = TIMES_MEDIAN * median(turns[client_id])
        else:
            size = self._size(client_id)
            wanted = TIMES_OTHERS * max(seconds * max(1.0, size / other) for seconds, other in self._lately[phase])
        wanted = max(self._shortest, wanted) * 2.0 ** min(self._missed[client_id, phase], 10)
        return wanted if self._most is None else min(wanted, self._most)
