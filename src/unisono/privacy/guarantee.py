"""Promises about the statistics that clients release, such as centroids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SMALLEST_CLUSTER = "smallest_cluster"
"""The client metric that tells the fewest samples behind any centroid it sent."""


@dataclass(frozen=True)
class KAnonymity:
    """Every released centroid stands for at least k samples of its client.

    Args:
        min_size: the k that the method enforces; clusters are often larger.
    """

    min_size: int
    noise_is_repeatable = False

    def numbers(self, releases: Mapping[int, int], smallest: int | None) -> dict[str, Any]:
        return {"mechanism": "k-anonymous", "enforced_k": self.min_size, "k": smallest}

    def by_client(self, releases: Mapping[int, int]) -> Mapping[int, float]:
        return {}

    def statement(self, releases: Mapping[int, int], smallest: int | None) -> str:
        if smallest is None:
            return f"No centroid has left a client: none had {self.min_size} samples, the fewest that a centroid may stand for."
        return (
            f"Every centroid that left a client is the mean direction of at least {smallest} different samples of that client "
            f"(k-anonymity with k = {smallest}; means of fewer than {self.min_size} are never sent). "
            "This is no differential privacy, and it covers centroids, not model updates."
        )


@dataclass(frozen=True)
class NoGuarantee:
    """Representations of single samples leave the clients."""

    noise_is_repeatable = False

    def numbers(self, releases: Mapping[int, int], smallest: int | None) -> dict[str, Any]:
        return {"mechanism": "none", "k": 1}

    def by_client(self, releases: Mapping[int, int]) -> Mapping[int, float]:
        return {}

    def statement(self, releases: Mapping[int, int], smallest: int | None) -> str:
        return (
            "Representations of single samples left the clients (k = 1): whoever reads them may be able to rebuild the samples."
        )
