"""Callbacks that write a run down: logs, failures, privacy, checkpoints, and the exchange log.

``ExchangeLog`` looks up the rows that a client drew in the labels of a simulation; no client sees a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unisono.core.errors import ClientError
from unisono.core.method import Method
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
            self._directory.record_logs()


def _client_seconds(record: RoundRecord) -> float:
    return sum(stats.seconds for _, stats in record.clients)


class ExchangeLog(Callback):
    """Callback that logs points and bytes over each link, and the labels of the points that each client's steps drew.

    Adds means over clients to the metrics: ``label_variance``, the same of anchors and of negatives, and ``false_negatives``.
    Adds ``exchange_slowest``, the time of the client that needed longest for its part in the exchange, to the timings.

    Args:
        directory: where the log goes.
        store: the clients' local states, which tell what they drew.
        method: reads these, and knows its phases.
        num_clients: size of the federation.
        labels: of all rows, -1 where unknown; None where there are none.
    """

    def __init__(
        self, directory: RunDirectory, store: ClientStateStore, method: Method, num_clients: int, labels: Tensor | None
    ) -> None:
        self._log = directory.logs["exchange"]
        self._store = store
        self._method = method
        self._num_clients = num_clients
        self._labels = labels

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        entry: dict[str, Any] = {"round": record.round, "links": _links(self._method.exchange_ledger(state.server))}
        if self._labels is not None:
            found = [self._drawn(client, record.round, self._labels) for client in range(self._num_clients)]
            for name in dict.fromkeys(name for client in found for name in client):
                entry[name] = [client.get(name) for client in found]
                numbers = [client[name] for client in found if isinstance(client.get(name), float)]
                record.metrics |= {name: sum(numbers) / len(numbers)} if numbers else {}
        self._log.append(entry)
        seconds: dict[int, float] = {}
        for phase, stats in record.clients:
            if phase in self._method.exchange_phases:
                seconds[stats.client_id] = seconds.get(stats.client_id, 0.0) + stats.seconds
        record.seconds["exchange_slowest"] = max(seconds.values(), default=0.0)

    def _drawn(self, client: int, round: int, labels: Tensor) -> dict[str, Any]:
        """Return numbers about the labels of the points that a client drew; nothing where it drew none."""
        rows = {name: drawn for name, drawn in self._method.drawn_rows(self._store.get(client), round).items() if len(drawn)}
        counts = {name: label_counts(labels, drawn) for name, drawn in rows.items()}
        if not counts:
            return {}
        found: dict[str, Any] = {"label_variance": label_variance(torch.stack(list(counts.values())).sum(dim=0))}
        found |= {f"label_variance_{name}": label_variance(count) for name, count in counts.items()}
        if "anchors" in rows and "negatives" in rows:
            found["false_negatives"] = false_negatives(labels[rows["anchors"]], labels[rows["negatives"]])
        return found | {f"drawn_{name}": count.tolist() for name, count in counts.items()}


def label_counts(labels: Tensor, rows: Tensor) -> Tensor:
    """Return the number of these rows by label, shape (highest label + 1,); unknown labels are not counted."""
    found = labels[rows]
    return torch.bincount(found[found >= 0], minlength=int(labels.max()) + 1)


def label_variance(counts: Tensor) -> float:
    """Return the variance over labels of their shares among the points that a client drew; 0 where all are alike.

    CF-CL (Wagle et al.), Fig. 3(c): "variance of count of datapoints sampled from each label", "in local SGD iterations". All
    clients draw as many points in an interval, so the variance of counts is this times the square of their number.

    Args:
        counts: points per label, shape (num_labels,).
    """
    return float((counts.double() / max(1, int(counts.sum()))).var(correction=0))


def false_negatives(anchors: Tensor, negatives: Tensor) -> float:
    """Return the share of triplets whose negative has the label of its anchor; triplets with an unknown label do not count.

    Args:
        anchors: labels, -1 where unknown, shape (num_triplets,).
        negatives: of the same triplets.
    """
    known = (anchors >= 0) & (negatives >= 0)
    return float((anchors == negatives)[known].double().mean()) if bool(known.any()) else 0.0


def _links(ledger: Tensors) -> list[dict[str, int]]:
    """Return a dictionary per link and direction."""
    names = {"senders": "from", "receivers": "to", "pushed": "pushed", "pulled": "pulled", "bytes": "bytes"}
    columns = [ledger[name].tolist() for name in names] if ledger else []
    return [dict(zip(names.values(), row, strict=True)) for row in zip(*columns, strict=True)]
