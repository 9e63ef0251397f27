"""Callbacks that write a run down: logs, failures, privacy, checkpoints, and the exchange log.

``ExchangeLog`` looks up the rows that a client was sent in the labels of a simulation; no client sees a label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unisono.core.errors import ClientError
from unisono.core.payload import Reduce, Share, Tensors
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.privacy.accountant import UserLevelAccountant
from unisono.runs.directory import RunDirectory


class Logs(Callback):
    """Callback that writes metrics, clients and notes, bit-identical for the same seed, and timings apart."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        logs = self._directory.logs
        logs["metrics"].append(record.as_json())
        clients = [
            {
                "client": stats.client_id,
                "phase": phase,
                "samples": stats.num_samples,
                "bytes_down": stats.bytes_down,
                "bytes_up": stats.bytes_up,
                **stats.metrics,
            }
            for phase, stats in record.clients
        ]
        logs["clients"].append({"round": record.round, "clients": clients})
        for note in record.notes:
            logs["notes"].append({"round": record.round, "note": note})
        seconds = {name: round(value, 4) for name, value in record.seconds.items()}
        seconds["clients"] = round(_client_seconds(record), 4)
        logs["timings"].append({"round": record.round, "seconds": seconds})


class Failures(Callback):
    """Callback that writes every client failure to ``failures.jsonl`` at once."""

    def __init__(self, directory: RunDirectory) -> None:
        self._log = directory.logs["failures"]

    def on_client_failure(self, failure: ClientError) -> None:
        self._log.append(
            {
                "round": failure.round,
                "phase": failure.phase,
                "client": failure.client_id,
                "reason": failure.reason,
                "traceback": failure.details,
            }
        )


class PrivacyLedger(Callback):
    """Callback that writes the privacy spent so far to ``privacy.jsonl`` every round, and which groups it covers."""

    def __init__(
        self, directory: RunDirectory, accountant: UserLevelAccountant, delta: float, shares: Mapping[str, Share]
    ) -> None:
        self._log = directory.logs["privacy"]
        self._accountant = accountant
        self._delta = delta
        self._covers = [group for group, share in shares.items() if share.reduce is not Reduce.STACK]
        self._misses = [group for group, share in shares.items() if share.reduce is Reduce.STACK]

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        epsilon = self._accountant.epsilon(state.num_releases)
        spent = {"round": record.round, "epsilon": epsilon, "delta": self._delta}
        self._log.append({**spent, "covers": self._covers, "does_not_cover": self._misses})
        record.metrics["epsilon"] = epsilon


class Checkpointing(Callback):
    """Callback that saves a checkpoint every few rounds and after the last one; it comes last, when all logs are written."""

    def __init__(self, directory: RunDirectory, store: ClientStateStore, every: int, keep: int, num_rounds: int) -> None:
        self._directory = directory
        self._store = store
        self._every = every
        self._checkpoints = directory.checkpoints(keep)
        self._num_rounds = num_rounds

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        if state.round % self._every == 0 or state.round == self._num_rounds:
            self._checkpoints.save(state, self._store, self._directory.log_lengths())


def _client_seconds(record: RoundRecord) -> float:
    return sum(stats.seconds for _, stats in record.clients)


EXTRA_PHASES = ("push", "offer")
"""Phases that training without exchange does not have."""


class ExchangeLog(Callback):
    """Callback that logs points and bytes over each link, and the variance of each client's label counts, every round.

    Adds ``label_variance``, the mean over clients, to the metrics, and ``exchange_slowest``, the time of the client that needed
    longest for its part in the exchange, to the timings.

    Args:
        directory: where the log goes.
        store: the clients' local states, which hold what they received.
        indices: the rows of each client.
        labels: of all rows, -1 where unknown; None where there are none.
    """

    def __init__(
        self, directory: RunDirectory, store: ClientStateStore, indices: Sequence[Tensor], labels: Tensor | None
    ) -> None:
        self._log = directory.logs["exchange"]
        self._store = store
        self._labels = labels
        self._own = [] if labels is None else [label_counts(labels, rows) for rows in indices]

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        entry: dict[str, Any] = {"round": record.round, "links": _links(state.server.groups.get("ledger", {}))}
        if self._labels is not None:
            held = [own + self._received(client, self._labels) for client, own in enumerate(self._own)]
            variances = label_variance(torch.stack(held))
            entry["label_variance"] = variances.tolist()
            record.metrics["label_variance"] = float(variances.mean())
        self._log.append(entry)
        seconds: dict[int, float] = {}
        for phase, stats in record.clients:
            if phase in EXTRA_PHASES:
                seconds[stats.client_id] = seconds.get(stats.client_id, 0.0) + stats.seconds
        record.seconds["exchange_slowest"] = max(seconds.values(), default=0.0)

    def _received(self, client: int, labels: Tensor) -> Tensor:
        buffer = self._store.get(client).groups.get("buffer", {})
        return label_counts(labels, buffer.get("rows", torch.empty(0, dtype=torch.int64)))


def label_counts(labels: Tensor, rows: Tensor) -> Tensor:
    """Return the number of these rows by label, shape (highest label + 1,); unknown labels are not counted."""
    found = labels[rows]
    return torch.bincount(found[found >= 0], minlength=int(labels.max()) + 1)


def label_variance(counts: Tensor) -> Tensor:
    """Return the variance of each client's points per label, float64 of shape (num_clients,); 0 where all are alike.

    CF-CL (Wagle et al.), Fig. 3(c): "the variance of count of datapoints sampled from each labels across devices".

    Args:
        counts: points per client and label, shape (num_clients, num_labels).
    """
    return counts.double().var(dim=1, correction=0)


def _links(ledger: Tensors) -> list[dict[str, int]]:
    """Return a dictionary per link and direction."""
    names = {"senders": "from", "receivers": "to", "pushed": "pushed", "pulled": "pulled", "bytes": "bytes"}
    columns = [ledger[name].tolist() for name in names] if ledger else []
    return [dict(zip(names.values(), row, strict=True)) for row in zip(*columns, strict=True)]
