"""Handler of requests to simulated clients: any process answers for any client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.engines.devices import resolve_devices, threads
from unisono.engines.flower.messages import Request
from unisono.engines.shards import WorkerSetup
from unisono.federation.client_turn import ClientResult, prepare_nets, run_client

Opener = Callable[[str], tuple[WorkerSetup, str]]
"""Function that builds the worker setup of a run specification, and names its device; it must be importable by name."""


class SimulatedClient:
    """Handler for any client of a simulation; a process builds a run's worker setup once and keeps it until the next run.

    Args:
        build_worker_setup: see Opener.
    """

    _kept: tuple[str, WorkerSetup, torch.nn.ModuleDict, torch.device] | None = None

    def __init__(self, build_worker_setup: Opener) -> None:
        self._open = build_worker_setup

    def answer(self, request: Request) -> ClientResult:
        """Return the answer of ``request.client_id``."""
        setup, nets, device = self._setup(request.run_spec)
        with threads(1):
            return run_client(
                setup.method,
                nets,
                request.received,
                request.local,
                setup.clients.client_data(request.client_id, device),
                request.context(device),
                setup.postprocessor,
            )

    def describe(self, question: dict[str, object]) -> dict[str, object]:
        """Return a simulated node holds no data of its own."""
        return {"simulated": True}

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Return a simulation probes on the server."""
        raise UserError("A simulated client has no probes of its own.")

    def sum_step(self, values: dict[str, Any]) -> tuple[dict[str, Any], Payload]:
        """Refuse: a simulation masks nothing."""
        raise UserError("A simulated client takes part in no masked sum.")

    def _setup(self, run_spec: str) -> tuple[WorkerSetup, torch.nn.ModuleDict, torch.device]:
        kept = SimulatedClient._kept
        if kept is None or kept[0] != run_spec:
            setup, name = self._open(run_spec)
            # An actor sees the GPUs that Ray gave it, counted anew.
            device = resolve_devices(name.partition(":")[0])[0]
            kept = SimulatedClient._kept = (run_spec, setup, prepare_nets(setup.method, device), device)
        return kept[1:]
