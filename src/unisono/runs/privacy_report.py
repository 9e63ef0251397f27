"""The privacy report of a run: ``privacy.json``, and what clients' statistics have cost so far in ``privacy.jsonl``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from unisono.core.method import Guarantee
from unisono.core.payload import Share
from unisono.federation.client_turn import ClientStats
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.privacy.accountant import UserLevelAccountant
from unisono.privacy.guarantee import SMALLEST_CLUSTER
from unisono.runs.directory import RunDirectory

CENTROIDS = "centroids"
"""Lines of privacy.jsonl about statistics have ``what`` = this; the others are about model updates."""


class PrivacyReport(Callback):
    """Callback that counts the releases of every client, and states what they mean for privacy.

    A client's answer is a release, whether its round was kept or retried. The counts come from ``privacy.jsonl``, which a
    resumed run cuts back to its checkpoint; the rounds after it are repeated, and counted, once more.

    Args:
        directory: where the report goes.
        shares: the method's declared shares.
        guarantee: what the method promises about statistics; None where clients release none.
        accountant: of the noise on model updates; None without noise.
        warnings: sentences that the user was told before the run.
    """

    def __init__(
        self,
        directory: RunDirectory,
        shares: Mapping[str, Share],
        guarantee: Guarantee | None,
        accountant: UserLevelAccountant | None,
        warnings: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._shares = shares
        self._guarantee = guarantee
        self._accountant = accountant
        self._warnings = list(warnings)
        self._releases: Counter[int] = Counter()
        self._smallest: int | None = None
        self._attempts: list[set[tuple[str, int]]] = []
        self._owners: dict[str, Mapping[str, Any]] = {}
        self._notes: list[str] = []

    def on_run_start(self, state: ServerState) -> None:
        lines = [line for line in self._directory.logs["privacy"].read() if line.get("what") == CENTROIDS]
        self._releases = Counter(client for line in lines for client in line["released"])
        sizes = [line["k"] for line in lines if line.get("k") is not None]
        self._smallest = min(sizes, default=None)
        self._attempts = []
        known = self._directory.path / "privacy.json"
        self._owners = dict(self._directory.read_json("privacy.json").get("owners", {})) if known.is_file() else {}

    def on_round_start(self, round: int, num_clients: int) -> None:
        self._attempts.append(set())

    def on_client_end(self, phase: str, stats: ClientStats) -> None:
        self._attempts[-1].add((phase, stats.client_id))
        self._note_owner(stats)
        size = stats.metrics.get(SMALLEST_CLUSTER)
        if size is not None:
            self._smallest = int(size) if self._smallest is None else min(self._smallest, int(size))

    def _note_owner(self, stats: ClientStats) -> None:
        """Keep the hash of a client's policy and the head of its ledger, and notice a ledger that went back."""
        if not stats.owner:
            return
        before = self._owners.get(str(stats.client_id))
        length = stats.owner["ledger"][0]
        if before is not None and before["ledger"][0] > length:
            self._notes.append(
                f"client {stats.client_id}: its ledger went back from {before['ledger'][0]} to {length} lines, so an older "
                "copy was restored, or it was reset"
            )
        self._owners[str(stats.client_id)] = stats.owner

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        record.notes += self._notes
        self._notes = []
        released = sorted(client_id for attempt in self._attempts for _, client_id in attempt)
        self._attempts = []
        if self._guarantee is not None:
            self._releases.update(released)
            numbers = self._guarantee.numbers(self._releases, self._smallest)
            self._directory.logs["privacy"].append({"round": record.round, "what": CENTROIDS, **numbers, "released": released})
            if "centroid_epsilon" in numbers:
                record.metrics["centroid_epsilon"] = numbers["centroid_epsilon"]
                record.notes.append(
                    f"centroids so far: epsilon {numbers['centroid_epsilon']:.4g} at delta {numbers['centroid_delta']:g} "
                    f"for a client of {numbers['most_releases']} releases"
                )
        self._directory.write_json("privacy.json", self._report(state))

    def _report(self, state: ServerState) -> dict[str, Any]:
        report: dict[str, Any] = {
            "round": state.round,
            "leaves_a_client": {
                group: {"reveals": share.reveals.value, "reduced_by": share.reduce.value}
                for group, share in self._shares.items()
            },
            "model_updates": "Model updates are not differentially private."
            if self._accountant is None
            else self._accountant.statement(state.num_releases),
        }
        if self._guarantee is not None:
            numbers = self._guarantee.numbers(self._releases, self._smallest)
            report[CENTROIDS] = {**numbers, "statement": self._guarantee.statement(self._releases, self._smallest)}
            by_client = self._guarantee.by_client(self._releases)
            if by_client:
                report[CENTROIDS]["epsilon_by_client"] = by_client
        owners = {"owners": self._owners} if self._owners else {}
        return {**report, **owners, "warnings": self._warnings}
