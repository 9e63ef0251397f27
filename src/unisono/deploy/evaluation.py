"""Probes of a real federation: without labels on the clients, with labels where the server has some."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import torch

from unisono.config import Config
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import Method
from unisono.data.datasets import DataConfig, Dataset, load_dataset
from unisono.data.views import make_views
from unisono.deploy.policy_tables import Probe
from unisono.engines.flower.engine import FlowerEngine
from unisono.engines.flower.messages import UNREADABLE, RequestBuilder, check_texts, failure_of, read_values
from unisono.evaluation.config import client_probes
from unisono.evaluation.probe_data import ProbeData
from unisono.federation.loop import RoundRecord, ServerState
from unisono.runs.evaluation import NO_PROJECTOR, PREFIX, Evaluation, Evaluator

CLIENT_SCORES: tuple[str, ...] = get_args(Probe)
"""Scores that clients may give; what else they send is not read."""


class ClientEvaluationCallback(Evaluation):
    """Callback that adds the mean over clients of their own probe scores, every few rounds and after the last.

    Args:
        engine: asks them.
        method: what is learnt; clients get what it broadcasts.
        run_spec: see the engine.
        config: how often, how long the run is, and its seed.
        on_note: told of clients that could not say.
    """

    def __init__(
        self, engine: FlowerEngine, method: Method, run_spec: str, config: Config, on_note: Callable[[str], None]
    ) -> None:
        super().__init__(config.evaluation.probe_every, config.federation.rounds)
        self._engine = engine
        self._method = method
        self._run_spec = run_spec
        self._config = config
        self._on_note = on_note
        self._scored = "alignment" in client_probes(config.evaluation, method.overrides("cluster_model"))
        self._said = False

    def evaluate(self, state: ServerState, record: RoundRecord) -> None:
        start = time.perf_counter()
        ctx = Context(self._config.run.seed, record.round)
        broadcast = self._method.broadcast(state.server, ctx)
        if not self._said and self._scored and self._method.projector(broadcast) is None:
            self._on_note(NO_PROJECTOR.format(self._method.name))
        self._said = True
        builder = RequestBuilder(ctx, self._run_spec, broadcast)
        found: list[dict[str, float]] = []

        def settle(client_id: int, content: Any, reason: str) -> None:
            try:
                if content is None:
                    raise ValueError(reason)
                check_texts(content)
                if (failure := failure_of(content)) is not None:
                    raise ValueError(failure)
                scores = dict(read_values(content, "scores")["scores"])
                numbers = {name: float(scores[name]) for name in CLIENT_SCORES if name in scores}
                if not all(map(math.isfinite, numbers.values())):
                    raise ValueError("a score is not finite")
                found.append(numbers)
            except UNREADABLE as error:
                self._on_note(f"client {client_id} did not probe: {error}")

        clients = self._engine.available() or range(self._engine.num_clients)
        self._engine.ask({client: builder.build(client) for client in clients}, ctx, settle, "evaluate")
        for name in sorted({name for scores in found for name in scores}):
            record.metrics[PREFIX + name] = fmean(scores[name] for scores in found if name in scores)
        record.seconds["client probes"] = time.perf_counter() - start


def load_labelled(path: Path, shape: tuple[int, ...], wanted: DataConfig) -> Dataset:
    """Return the server's labelled samples, in the federation's shape.

    Args:
        path: folder with one subfolder per class, or .npz.
        shape: what the federation agreed on.
        wanted: size and channels of the recipe.
    """
    image_size = wanted.image_size or (shape[1] if len(shape) == 3 and shape[1] == shape[2] and path.is_dir() else None)
    values = {
        "dataset": "npz" if path.suffix == ".npz" else "folder",
        "path": str(path),
        "layout": "classes",
        "image_size": image_size,
        "channels": wanted.channels or (shape[0] if path.is_dir() else None),
        "bits": wanted.bits,
    }
    dataset = load_dataset(DataConfig.model_validate(values, strict=False))
    if dataset.input_shape != shape:
        raise UserError(
            f"The labelled samples in {path} have shape {dataset.input_shape}, and the federation learns on {shape}."
        )
    if dataset.labels is None or dataset.test_labels is None:
        raise UserError(f"The labelled samples in {path} have no labels, or no test part.")
    return dataset


def labelled_evaluator(config: Config, method: Method, dataset: Dataset) -> Evaluator:
    """Return the usual probes on the server's labelled samples."""
    data = ProbeData(dataset.samples, dataset.labels, dataset.test_samples, dataset.test_labels, dataset.labels)
    views = make_views(config.views, dataset.input_shape, config.model.input_size)
    return Evaluator(config.evaluation, method, data, config.run.seed, views.pair, [torch.arange(len(dataset.samples))])
