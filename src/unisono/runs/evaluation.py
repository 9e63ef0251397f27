"""Evaluation during a run: callbacks that add scores to the record of a round, and the floors they are compared with."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, MutableMapping, Sequence

import torch
from torch import Tensor

from unisono.core.context import Context
from unisono.core.method import Method
from unisono.core.payload import Payload
from unisono.data.partition import Partition, mean_number_held
from unisono.data.views import ViewsConfig, make_views
from unisono.evaluation.config import EvaluationConfig, chosen_probes, is_due
from unisono.evaluation.floors import Floors, measure_floors
from unisono.evaluation.linear import LinearClassifier
from unisono.evaluation.probe_data import ProbeData
from unisono.evaluation.probes import run_probes
from unisono.federation.client_turn import FederatedDataset
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.runs.probe_layers import ProbeLayers

PREFIX = "probe."
"""Probe results stand under this prefix in metrics.jsonl."""
NO_PROJECTOR = "align, uniformity and score are those of the encoder's features, because {} has no projector"


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
        self._crop_flip = make_views(ViewsConfig(preset="orchestra-supervised"), method.info.input_shape).first

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
            previous_encoder=None if previous is None else self._method.encoder(previous),
            layers=layers,
            crop_flip=self._crop_flip,
            projector=self._method.projector(server),
        )

    def space_note(self, server: Payload) -> str:
        """Return a sentence if the score without labels looks at the encoder's features; empty otherwise."""
        clusters = self._method.overrides("cluster_model")
        scored = "alignment" in chosen_probes(self._config, self._data.has_labels, clusters, self._data.held_out)
        return NO_PROJECTOR.format(self._method.name) if scored and self._method.projector(server) is None else ""

    def cap_note(self) -> str:
        """Return a sentence if probes look at a part of the samples; empty otherwise."""
        judged, config = self._data.judged, self._config
        num_judged = len(judged.samples if judged.rows is None else judged.rows)
        counts = (
            ("training samples", len(self._data.train_samples), config.max_train_samples, "max_train_samples"),
            ("test samples", num_judged, config.max_test_samples, "max_test_samples"),
        )
        capped = [
            f"{most:,} of {number:,} {what} (evaluation.{option})" for what, number, most, option in counts if 0 < most < number
        ]
        return f"Probes and floors look at {' and '.join(capped)}, drawn from the seed." if capped else ""

    def floors(self) -> Floors:
        """Return the scores of raw pixels, their principal components and untrained weights, by the same probes."""
        if not self._config.floors:
            return {}
        clusters = self._method.overrides("cluster_model")
        server = self._method.init_server(Context(0))
        return measure_floors(
            self._config,
            self._data,
            self._method.encoder(server),
            clusters,
            self._views,
            self._client_indices,
            self._crop_flip,
            self._method.projector(server),
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

    def floors(self) -> Floors:
        """Return scores that the encoder should beat, by floor and probe."""
        return {}

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        if is_due(self._every, state.round, self._num_rounds):
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
        self._said = False

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
        note = "" if self._said else self._evaluator.space_note(state.server)
        caps = self._evaluator.cap_note() if state.round == self._num_rounds else ""
        record.notes += [sentence for sentence in (note, caps) if sentence]
        self._said = True
        record.seconds["probe"] = time.perf_counter() - start

    def floors(self) -> Floors:
        """Return the floors of the evaluator's data."""
        return self._evaluator.floors()


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
