"""Observers that write a run down: logs, privacy ledger, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from unisono.core.errors import ClientError
from unisono.core.payload import Reduce, Share
from unisono.federation.client_store import ClientStore
from unisono.federation.rounds import Observer, RoundRecord, State
from unisono.privacy.accountant import UserLevelAccountant
from unisono.runs.directory import RunDirectory


class Logs(Observer):
    """Writes metrics, clients and notes, the same bits for the same seed, and timings apart."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory

    def on_round_end(self, state: State, record: RoundRecord) -> None:
        logs = self._directory.logs
        logs["metrics"].append(record.as_json())
        clients = [
            {
                "client": report.client_id,
                "phase": phase,
                "samples": report.num_samples,
                "bytes_down": report.bytes_down,
                "bytes_up": report.bytes_up,
                **report.metrics,
            }
            for phase, report in record.clients
        ]
        logs["clients"].append({"round": record.round, "clients": clients})
        for note in record.notes:
            logs["notes"].append({"round": record.round, "note": note})
        seconds = {name: round(value, 4) for name, value in record.seconds.items()}
        seconds["clients"] = round(_client_seconds(record), 4)
        logs["timings"].append({"round": record.round, "seconds": seconds})


class Failures(Observer):
    """Writes every client that fails to ``failures.jsonl`` at once."""

    def __init__(self, directory: RunDirectory) -> None:
        self._log = directory.logs["failures"]

    def on_failure(self, failure: ClientError) -> None:
        self._log.append(
            {
                "round": failure.round,
                "phase": failure.phase,
                "client": failure.client_id,
                "reason": failure.reason,
                "traceback": failure.details,
            }
        )


class PrivacyLedger(Observer):
    """Writes the privacy spent so far to ``privacy.jsonl`` every round, and which groups it covers."""

    def __init__(
        self, directory: RunDirectory, accountant: UserLevelAccountant, delta: float, shares: Mapping[str, Share]
    ) -> None:
        self._log = directory.logs["privacy"]
        self._accountant = accountant
        self._delta = delta
        self._covers = [group for group, share in shares.items() if share.reduce is not Reduce.STACK]
        self._misses = [group for group, share in shares.items() if share.reduce is Reduce.STACK]

    def on_round_end(self, state: State, record: RoundRecord) -> None:
        epsilon = self._accountant.epsilon(state.num_releases)
        spent = {"round": record.round, "epsilon": epsilon, "delta": self._delta}
        self._log.append({**spent, "covers": self._covers, "does_not_cover": self._misses})
        record.metrics["epsilon"] = epsilon


class Checkpointing(Observer):
    """Saves a checkpoint every few rounds and after the last one; it looks on last, when all logs are written."""

    def __init__(self, directory: RunDirectory, store: ClientStore, every: int, keep: int, num_rounds: int) -> None:
        self._directory = directory
        self._store = store
        self._every = every
        self._checkpoints = directory.checkpoints(keep)
        self._num_rounds = num_rounds

    def on_round_end(self, state: State, record: RoundRecord) -> None:
        if state.round % self._every == 0 or state.round == self._num_rounds:
            self._checkpoints.save(state, self._store, self._directory.log_lengths())


def _client_seconds(record: RoundRecord) -> float:
    return sum(report.seconds for _, report in record.clients)
