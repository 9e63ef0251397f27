"""What devices moved between each other, and how even it made their data: ``exchange.jsonl``.

Labels stay here: the log looks up the rows that a device was sent in the labels of a simulation, and no client sees any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unisono.core.payload import Tensors
from unisono.federation.client_store import ClientStore
from unisono.federation.rounds import Observer, RoundRecord, State
from unisono.runs.directory import RunDirectory

EXTRA_PHASES = ("push", "offer")
"""Phases that training without exchange does not have."""


class ExchangeLog(Observer):
    """Writes a line per round: points and bytes over each link, and the variance of each device's label counts.

    Adds ``label_variance``, the mean over devices, to the metrics, and ``exchange_slowest``, the time of the device that needed
    longest for its part in the exchange, to the timings.

    Args:
        directory: where the log goes.
        store: the devices' local states, which hold what they received.
        indices: the rows of each device.
        labels: of all rows, -1 where unknown; None where there are none.
    """

    def __init__(self, directory: RunDirectory, store: ClientStore, indices: Sequence[Tensor], labels: Tensor | None) -> None:
        self._log = directory.logs["exchange"]
        self._store = store
        self._labels = labels
        self._own = [] if labels is None else [label_counts(labels, rows) for rows in indices]

    def on_round_end(self, state: State, record: RoundRecord) -> None:
        entry: dict[str, Any] = {"round": record.round, "links": _links(state.server.groups.get("ledger", {}))}
        if self._labels is not None:
            held = [own + self._received(device, self._labels) for device, own in enumerate(self._own)]
            variances = label_variance(torch.stack(held))
            entry["label_variance"] = variances.tolist()
            record.metrics["label_variance"] = float(variances.mean())
        self._log.append(entry)
        seconds: dict[int, float] = {}
        for phase, report in record.clients:
            if phase in EXTRA_PHASES:
                seconds[report.client_id] = seconds.get(report.client_id, 0.0) + report.seconds
        record.seconds["exchange_slowest"] = max(seconds.values(), default=0.0)

    def _received(self, device: int, labels: Tensor) -> Tensor:
        buffer = self._store.get(device).groups.get("buffer", {})
        return label_counts(labels, buffer.get("rows", torch.empty(0, dtype=torch.int64)))


def label_counts(labels: Tensor, rows: Tensor) -> Tensor:
    """How many of these rows have each label, shape (highest label + 1,); unknown labels are not counted."""
    found = labels[rows]
    return torch.bincount(found[found >= 0], minlength=int(labels.max()) + 1)


def label_variance(counts: Tensor) -> Tensor:
    """The variance of each device's numbers of points per label, float64 of shape (num_devices,); 0 where all are alike.

    CF-CL (Wagle et al.), Fig. 3(c): "the variance of count of datapoints sampled from each labels across devices".

    Args:
        counts: points per device and label, shape (num_devices, num_labels).
    """
    return counts.double().var(dim=1, correction=0)


def _links(ledger: Tensors) -> list[dict[str, int]]:
    """A dictionary per link and direction."""
    names = {"senders": "from", "receivers": "to", "pushed": "pushed", "pulled": "pulled", "bytes": "bytes"}
    columns = [ledger[name].tolist() for name in names] if ledger else []
    return [dict(zip(names.values(), row, strict=True)) for row in zip(*columns, strict=True)]
