"""Refusals of a client: a code that the server always reads, and a sentence that it reads if the owner likes."""

from __future__ import annotations

from unisono.core.errors import UserError
from unisono.deploy.policy_tables import Policy

NOT_NOW = "not-now"
PENDING = "pending"


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
