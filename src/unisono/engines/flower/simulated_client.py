"""A client of a simulation at work, in any process: it answers for whoever is asked."""

from __future__ import annotations

from collections.abc import Callable

import torch

from unisono.core.errors import UserError
from unisono.engines.devices import resolve_devices, threads
from unisono.engines.flower.messages import Request
from unisono.engines.lanes import Workshop
from unisono.federation.worker import Answer, answer, prepare_nets

Opener = Callable[[str], tuple[Workshop, str]]
"""The workshop that the terms of a run describe, and the name of its device; it must be importable by name."""


class SimulatedClient:
    """Answers for any client of a simulation; a process opens a run's workshop once and keeps it until the next run.

    Args:
        open_workshop: see Opener.
    """

    _kept: tuple[str, Workshop, torch.nn.ModuleDict, torch.device] | None = None

    def __init__(self, open_workshop: Opener) -> None:
        self._open = open_workshop

    def answer(self, request: Request) -> Answer:
        """The answer of ``request.client_id``."""
        workshop, nets, device = self._workshop(request.terms)
        with threads(1):
            return answer(
                workshop.method,
                nets,
                request.received,
                request.local,
                workshop.clients.data_of(request.client_id, device),
                request.context(device),
                workshop.postprocessor,
            )

    def describe(self, question: dict[str, object]) -> dict[str, object]:
        """A simulated node holds no data of its own."""
        return {"simulated": True}

    def evaluate(self, request: Request) -> dict[str, float]:
        """A simulation probes on the server."""
        raise UserError("A simulated client has no probes of its own.")

    def _workshop(self, terms: str) -> tuple[Workshop, torch.nn.ModuleDict, torch.device]:
        kept = SimulatedClient._kept
        if kept is None or kept[0] != terms:
            workshop, name = self._open(terms)
            # An actor sees the GPUs that Ray gave it, counted anew.
            device = resolve_devices(name.partition(":")[0])[0]
            kept = SimulatedClient._kept = (terms, workshop, prepare_nets(workshop.method, device), device)
        return kept[1:]
