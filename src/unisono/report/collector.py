"""Collection of what a report needs and only the running process has: the split, some samples, their features over rounds."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import Method
from unisono.core.payload import Payload
from unisono.data.datasets import Dataset
from unisono.data.partition import Partition
from unisono.data.shift import ShiftConfig, bin_counts
from unisono.evaluation.features import embed
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.report.config import ReportConfig, shown_rounds
from unisono.report.files import ReportFiles, Snapshot
from unisono.report.thumbnails import sprite
from unisono.runs.directory import RunDirectory

END_OF_SENTENCE = re.compile(r"(?<=[.!?])(?<!\bal\.)\s+(?=[A-Z])")


class ReportCollector(Callback):
    """Callback that writes the folder ``report/`` while a run goes on; a problem with it never ends the run.

    Args:
        directory: of the run.
        config: the table.
        method: gives encoder, cluster_model and declared shares.
        dataset: names of classes, sizes.
        partition: who holds what.
        samples: all training samples as their clients see them.
        seed: the run's; draws the points of the map.
    """

    def __init__(
        self,
        directory: RunDirectory,
        config: ReportConfig,
        method: Method,
        dataset: Dataset,
        partition: Partition,
        samples: Tensor,
        seed: int,
    ) -> None:
        self.files = ReportFiles(directory)
        self._of_federation = directory.of_federation
        self._config = config
        self._method = method
        self._dataset = dataset
        self._partition = partition
        self._samples = samples
        self._seed = seed
        self._shift = ShiftConfig(**directory.config_tree["shift"])
        self._shown = shown_rounds(method.info.num_rounds, config.rounds)
        order = torch.randperm(len(samples), generator=Context(seed).rng("report points"))
        self._rows = order[: config.points].sort().values

    def on_run_start(self, state: ServerState) -> None:
        with self.files.errors_logged():
            self.describe(state.server)
            if state.round == 0 and 0 in self._shown:
                self.snapshot(0, state.server)

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        if state.round in self._shown and len(self._rows):
            start = time.perf_counter()
            with self.files.errors_logged():
                self.snapshot(state.round, state.server)
            record.seconds["map"] = time.perf_counter() - start

    def describe(self, server: Payload) -> None:
        """Write all that does not change over rounds; raise a UserError where the samples are not those of the run."""
        if self._of_federation:
            raise UserError("its samples are with the clients of its federation.")
        data = self._dataset
        self.files.write(
            "about",
            {
                **about_method(self._method, server),
                "train_samples": len(data.samples),
                "test_samples": len(data.test_samples),
                "classes": list(data.class_names) if data.labels is not None else [],
                "client_names": list(data.owner_names) if len(data.owner_names) == self._partition.num_clients else [],
            },
        )
        counts = self._partition.sizes[:, None] if data.labels is None else self._partition.class_counts(data.labels)
        split = {"sizes": self._partition.sizes.tolist(), "counts": counts.tolist()}
        if self._shift.kind == "rotation":
            split["turns"] = bin_counts(self._shift, self._partition, self._seed).tolist()
        self.files.write("split", split)
        if not len(self._rows):
            return
        labels = None if data.labels is None else data.labels[self._rows].tolist()
        self.files.write("points", {"labels": labels, "clients": _clients_of(self._partition.indices, self._rows)})
        if self._config.samples:
            self.files.write("samples", sprite(self._samples[self._rows]))

    def snapshot(self, round: int, server: Payload) -> None:
        """Write the points' features and clusters after this many rounds."""
        if not len(self._rows):
            return
        points = self._samples[self._rows]
        features = embed(self._method.encoder(server), points)
        cluster_model = self._method.cluster_model(server)
        clusters, confidence, num_clusters = torch.full((len(points),), -1), torch.zeros(len(points)), 0
        if cluster_model is not None:
            scores = embed(cluster_model, points).softmax(dim=1)
            num_clusters = scores.shape[1]
            confidence, clusters = scores.max(dim=1)
        self.files.save(round, Snapshot(features.half().numpy(), clusters.numpy(), confidence.numpy(), num_clusters))


class AboutMethod(Callback):
    """Callback that writes what the report of a real federation needs: the server has no samples, so there is no map.

    Args:
        directory: of the run.
        method: what is learnt.
    """

    def __init__(self, directory: RunDirectory, method: Method) -> None:
        self._files = ReportFiles(directory)
        self._method = method

    def on_run_start(self, state: ServerState) -> None:
        with self._files.errors_logged():
            self._files.write("about", about_method(self._method, state.server))


def about_method(method: Method, server: Payload) -> dict[str, Any]:
    """Return what is known of a run without its data: the method in a sentence, its declared shares, sizes.

    Args:
        method: what is learnt.
        server: its state.
    """
    return {
        "sentence": method_sentence(type(method)),
        "shares": [[name, share.reduce.name, share.reveals.name] for name, share in method.shares.items()],
        "parameters": sum(tensor.numel() for tensor in method.encoder(server).parameters()),
        "input_shape": list(method.info.input_shape),
    }


def method_sentence(method: type[Method]) -> str:
    """Return a sentence about a method: the first of its file, or of its class."""
    module = inspect.getmodule(method)
    for text in (module.__doc__ if module is not None else None, method.__doc__):
        if text and text.strip():
            return END_OF_SENTENCE.split(" ".join(text.strip().split("\n\n")[0].split()), maxsplit=1)[0]
    return ""


def _clients_of(indices: Sequence[Tensor], rows: Tensor) -> list[int]:
    """Return the client of each row."""
    client_of = torch.empty(sum(len(part) for part in indices), dtype=torch.int64)
    for client, part in enumerate(indices):
        client_of[part] = client
    found: list[int] = client_of[rows].tolist()
    return found
