"""Callbacks of a run: logs, failures, privacy, checkpoints, evaluation, cluster consistency, and the exchange log.

``ExchangeLog`` looks up the rows that a client was sent in the labels of a simulation; no client sees a label.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unisono.core.context import Context
from unisono.core.errors import ClientError
from unisono.core.method import Method
from unisono.core.payload import Payload, Reduce, Share, Tensors
from unisono.data.partition import Partition, mean_number_held
from unisono.evaluation.config import EvaluationConfig
from unisono.evaluation.linear import LinearClassifier
from unisono.evaluation.probes import ProbeData, run_probes
from unisono.federation.client_store import ClientStateStore
from unisono.federation.client_turn import FederatedDataset
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.privacy.accountant import UserLevelAccountant
from unisono.runs.directory import RunDirectory
from unisono.runs.probe_layers import ProbeLayers


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


PREFIX = "probe."
"""Probe results stand under this prefix in metrics.jsonl."""


class Evaluator:
    """All configured probes of a server state, on the server's samples.

    Args:
        config: which probes.
        method: gives encoder and cluster_model.
        data: samples and labels.
        seed: the run's seed.
        views: a pair of views of a batch, for scores that need no labels.
        client_indices: the rows of each client.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        method: Method,
        data: ProbeData,
        seed: int,
        views: Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]],
        client_indices: Sequence[Tensor],
    ) -> None:
        self._config = config
        self._method = method
        self._data = data
        self._seed = seed
        self._views = views
        self._client_indices = client_indices

    def __call__(
        self,
        server: Payload,
        round: int,
        previous: Payload | None = None,
        layers: MutableMapping[str, LinearClassifier] | None = None,
    ) -> dict[str, float]:
        """Return the scores by name, such as ``linear``.

        Args:
            server: the state to look at.
            round: its number.
            previous: the server's payload of the round before, to see how clusters have moved.
            layers: the linear layers of the last evaluation, to begin with if the config says so; they are replaced.
        """
        return run_probes(
            self._config,
            self._method.encoder(server),
            self._method.cluster_model(server),
            self._data,
            Context(self._seed, round, "probe"),
            views=self._views,
            client_indices=self._client_indices,
            previous_cluster_model=None if previous is None else self._method.cluster_model(previous),
            layers=layers,
        )


class Evaluation(Callback):
    """Base of callbacks that add scores to the record of a round, before anything is written.

    Args:
        every: rounds between evaluations; 0 evaluates the last round only.
        num_rounds: length of the run.
    """

    def __init__(self, every: int, num_rounds: int) -> None:
        self._every = every
        self._num_rounds = num_rounds

    @abstractmethod
    def evaluate(self, state: ServerState, record: RoundRecord) -> None:
        """Add scores of a server state to a record."""

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        if (self._every > 0 and state.round % self._every == 0) or state.round == self._num_rounds:
            self.evaluate(state, record)


class EvaluationCallback(Evaluation):
    """Scores of the probes, every few rounds and after the last.

    Args:
        probe: gives the scores.
        every: rounds between probes.
        num_rounds: length of the run.
        layers: where the layers of a warm start are kept; None begins anew every time.
    """

    def __init__(self, evaluator: Evaluator, every: int, num_rounds: int, layers: ProbeLayers | None = None) -> None:
        super().__init__(every, num_rounds)
        self._evaluator = evaluator
        self._previous: Payload | None = None
        self._store = layers
        self._layers: dict[str, LinearClassifier] = {}

    def on_run_start(self, state: ServerState) -> None:
        self._previous = state.server
        self._layers = {} if self._store is None else self._store.load(state.round)

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        super().on_round_end(state, record)
        self._previous = state.server

    def evaluate(self, state: ServerState, record: RoundRecord) -> None:
        start = time.perf_counter()
        results = self._evaluator(state.server, state.round, self._previous, self._layers)
        if self._store is not None:
            self._store.save(state.round, self._layers)
        record.metrics.update({PREFIX + name: value for name, value in results.items()})
        record.seconds["probe"] = time.perf_counter() - start


class ClassesPerClient(Evaluation):
    """Mean number of classes of which a client has a sample, and of which it has at least one in a hundred of its samples.

    The partition does not change, so it is measured for untrained weights only.

    Args:
        partition: assigns samples to clients.
        labels: of all samples; None where there are none.
    """

    def __init__(self, partition: Partition, labels: Tensor | None) -> None:
        super().__init__(0, 0)
        self._partition = partition
        self._labels = labels

    def evaluate(self, state: ServerState, record: RoundRecord) -> None:
        if self._labels is not None:
            counts = self._partition.class_counts(self._labels)
            record.metrics["classes-per-client"] = mean_number_held(counts)
            record.metrics["classes-of-one-percent"] = mean_number_held(counts, 0.01)


METRIC = "consistency"


class Consistency(Evaluation):
    """Callback that adds ``consistency`` to the metrics of every round; it looks at all clients' samples, as no server could.

    Args:
        method: gives the number.
        clients: their samples.
        seed: the run's seed.
    """

    def __init__(self, method: Method, clients: FederatedDataset, seed: int) -> None:
        super().__init__(1, 0)
        self._method = method
        self._clients = clients
        self._seed = seed

    def evaluate(self, state: ServerState, record: RoundRecord) -> None:
        if state.round == 0:
            return  # there are no clusters before the first round
        start = time.perf_counter()
        cpu = torch.device("cpu")
        owned = [self._clients.client_data(client_id, cpu) for client_id in range(len(self._clients))]
        samples = [data.samples[data.indices] for data in owned]
        ctx = Context(self._seed, record.round, METRIC)
        share = self._method.cluster_consistency(state.server, samples, ctx)
        if share is not None:
            record.metrics[METRIC] = share
        record.seconds[METRIC] = time.perf_counter() - start


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
