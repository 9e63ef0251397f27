"""Refusals of a client: a code that the server always reads, and a sentence that it reads if the owner likes."""

from __future__ import annotations

import re

from unisono.core.errors import UserError
from unisono.deploy.policy_tables import Policy

NOT_NOW = "not-now"
PENDING = "pending"


ASK_AGAIN = 10.0
"""Seconds after which the server asks a client again whose owner has not decided yet."""
SHORTEST, LONGEST = 60.0, 24 * 3600.0
"""Bounds of the time for which a client says that it does not work."""


def retry_delay(reason: str) -> float | None:
    """Return the seconds after which a client that has refused may agree; None for any other reason.

    Args:
        reason: what the server reads.
    """
    reason = reason.removeprefix("refused: ")
    if reason.startswith(PENDING):
        return ASK_AGAIN
    if not reason.startswith(NOT_NOW):
        return None
    found = re.search(r"in (\d{1,4}) minutes again", reason)
    return SHORTEST if found is None else min(max(60.0 * int(found[1]), SHORTEST), LONGEST)


class RefusedError(UserError):
    """A request that the owner's settings forbid. Its sentence depends on no sample, so the server may read it.

    Args:
        sentence: what is forbidden.
        key: the key of ``client.toml`` that forbids it; None where the protocol does.
        code: in place of the one that the key gives.
    """

    def __init__(self, sentence: str, key: str | None = None, code: str = "protocol") -> None:
        super().__init__(sentence)
        self.code = code if key is None else f"policy:{key}"

    def told(self, policy: Policy) -> str:
        """Return what the server reads."""
        short = policy.log.errors == "short" or self.code in (NOT_NOW, PENDING, "protocol")
        return f"{self.code}: {self}" if short else self.code
