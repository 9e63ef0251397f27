"""How far local clusters lead away from a clustering of everything, every round of a simulation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from unisono.core.context import Context
from unisono.core.payload import Payload
from unisono.federation.rounds import RoundRecord, State
from unisono.federation.worker import Clients
from unisono.runs.probing import Evaluation

METRIC = "consistency"


@runtime_checkable
class ClustersInTwoLevels(Protocol):
    """A method whose global clusters come from local ones."""

    def consistency(self, server: Payload, clients: Sequence[Tensor], ctx: Context) -> float:
        """The fraction of samples that keep their cluster if all are clustered in one place."""


class Consistency(Evaluation):
    """Adds ``consistency`` to the metrics of every round; it looks at all clients' samples, as no real server could.

    Args:
        method: gives the number.
        clients: their samples.
        seed: the run's seed.
    """

    def __init__(self, method: ClustersInTwoLevels, clients: Clients, seed: int) -> None:
        super().__init__(1, 0)
        self._method = method
        self._clients = clients
        self._seed = seed

    def evaluate(self, state: State, record: RoundRecord) -> None:
        if state.round == 0:
            return  # there are no clusters before the first round
        start = time.perf_counter()
        cpu = torch.device("cpu")
        owned = [self._clients.data_of(client_id, cpu) for client_id in range(len(self._clients))]
        samples = [data.samples[data.indices] for data in owned]
        ctx = Context(self._seed, record.round, METRIC)
        record.metrics[METRIC] = self._method.consistency(state.server, samples, ctx)
        record.seconds[METRIC] = time.perf_counter() - start
