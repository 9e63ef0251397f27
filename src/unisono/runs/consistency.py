"""Measure, every round of a simulation, how far local clusters lead away from a clustering of everything."""

from __future__ import annotations

import time

import torch

from unisono.core.context import Context
from unisono.core.method import Method
from unisono.federation.rounds import RoundRecord, State
from unisono.federation.worker import Clients
from unisono.runs.probing import Evaluation

METRIC = "consistency"


class Consistency(Evaluation):
    """Adds ``consistency`` to the metrics of every round; it looks at all clients' samples, as no real server could.

    Args:
        method: gives the number.
        clients: their samples.
        seed: the run's seed.
    """

    def __init__(self, method: Method, clients: Clients, seed: int) -> None:
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
        share = self._method.cluster_consistency(state.server, samples, ctx)
        if share is not None:
            record.metrics[METRIC] = share
        record.seconds[METRIC] = time.perf_counter() - start
