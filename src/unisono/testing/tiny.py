"""A federation that is small enough for tests: six clients, one of them with a single sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unisono.config import Config, resolve
from unisono.core.config import merge
from unisono.core.method import Method, RunInfo, methods
from unisono.engines.embedded import EmbeddedEngine, EngineConfig
from unisono.engines.shards import WorkerSetup
from unisono.federation.client_store import ClientStateStore
from unisono.federation.client_turn import FederatedDataset
from unisono.federation.loop import Callback, RoundLoop, ServerState
from unisono.federation.postprocess import Postprocessor

SIZES = (9, 7, 1, 12, 4, 2)
INPUT_SHAPE = (1, 8, 8)
NUM_CLASSES = 3


def tiny_config(method: str, over: Mapping[str, Any] | None = None) -> Config:
    """Return the config of a method with small networks, batches of 4 and three rounds.

    GroupNorm, unlike the default of a run, lets every sample pass by itself, so that a reference is computed sample by sample.

    Args:
        method: its name, ``package.module:NAME`` or ``file.py``.
        over: tables that replace these values.
    """
    tree: dict[str, Any] = {
        "method": {"name": method},
        "model": {"backbone": "convnet", "width": 0.125, "norm": "group"},
        "training": {"batch_size": 4, "local_epochs": 1},
        "federation": {"rounds": 3},
        "cohort": {"size": 4},
        "consent": {"allow_raw_representations": True, "share_data": True},
    }
    narrow = {name: 16 for name in methods[method].Config.model_fields if name.endswith("_dim")}
    if "local_steps" in methods[method].defaults.get("training", {}):
        tree["training"]["local_steps"] = 2
    return resolve(merge(merge(tree, {"method": narrow}), dict(over or {})))


def tiny_clients(labels: bool, sizes: Sequence[int] = SIZES) -> FederatedDataset:
    """Return clients of these sizes with random images, and random labels if they are wanted."""
    generator = torch.Generator().manual_seed(1)
    samples = torch.randint(0, 256, (sum(sizes), *INPUT_SHAPE), dtype=torch.uint8, generator=generator)
    classes = torch.randint(0, NUM_CLASSES, (sum(sizes),), generator=generator)
    return FederatedDataset(samples, torch.arange(sum(sizes)).split(list(sizes)), classes if labels else None)


def tiny_method(config: Config, num_clients: int = len(SIZES)) -> Method:
    """Return the method of a config for random images."""
    info = RunInfo(INPUT_SHAPE, (0.5,), (0.25,), NUM_CLASSES, num_clients, config.federation.rounds, config.method_sections)
    return config.method_class(config.method, info)


class TinyFederation:
    """A method on the embedded engine with random images.

    Args:
        method: its name, ``package.module:NAME`` or ``file.py``.
        workers: number of worker processes, 0 for none.
        seed: of the run.
        over: tables that replace those of ``tiny_config``.
        clients: in place of the six of ``tiny_clients``.
    """

    def __init__(
        self,
        method: str,
        workers: int = 0,
        seed: int = 0,
        over: Mapping[str, Any] | None = None,
        clients: FederatedDataset | None = None,
    ) -> None:
        self.config = tiny_config(method, over)
        self.method = tiny_method(self.config, len(SIZES if clients is None else clients))
        self.clients = clients or tiny_clients(self.method.needs_labels)
        postprocessor = Postprocessor(self.config.privacy, self.config.compression, self.method.shares)
        self.setup = WorkerSetup(self.method, self.clients, postprocessor, self.config.aggregation)
        self.engine = EmbeddedEngine(
            self.setup, EngineConfig(workers=workers, device="cpu", start_method=self.config.engine.start_method)
        )
        self.store = ClientStateStore()
        self.federation = RoundLoop(self.method, self.engine, self.store, self.config.loop, seed)

    def start(self) -> ServerState:
        """Return the state before the first round."""
        return self.federation.initial_state()

    def run(
        self, state: ServerState | None = None, until: int | None = None, callbacks: Sequence[Callback] = ()
    ) -> ServerState:
        """Run to the last round, or to ``until``, and end the workers."""
        try:
            return self.federation.run(state or self.start(), callbacks, until)
        finally:
            self.engine.close()


def same_bits(first: ServerState, second: ServerState) -> bool:
    """Return whether two server states are equal, bit for bit."""
    if first.round != second.round or first.server.scalars != second.server.scalars:
        return False
    pairs = [(first.server.flatten(), second.server.flatten()), (first.optimizer.flatten(), second.optimizer.flatten())]
    return all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in pairs)
