"""Context: seed, round, phase and client of a computation; the only source of randomness."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
import torch

SERVER = -1
"""Client id of a context outside of any client."""


@dataclass(frozen=True)
class Context:
    """Position in a run: seed, round, phase and client.

    Args:
        seed: the run's seed.
        round: the round, from 0.
        phase: the phase of the round, empty outside of one.
        client_id: the client at work, SERVER on the server.
        device: where tensors belong.
        secret: of a client on a real federation, so that the server cannot foresee its draws; empty in simulations.
    """

    seed: int
    round: int = 0
    phase: str = ""
    client_id: int = SERVER
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    secret: bytes = b""

    def rng(self, stream: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a generator that depends on seed, round, phase, client, stream, the secret, and on nothing else."""
        return torch.Generator(device).manual_seed(self._seed_of(stream))

    def numpy_rng(self, stream: str) -> np.random.Generator:
        """Return the same for numpy and scikit-learn."""
        return np.random.default_rng(self._seed_of(stream))

    def at(self, *, phase: str | None = None, client_id: int | None = None) -> Context:
        """Return the context of a phase or client of the same round."""
        return replace(
            self,
            phase=self.phase if phase is None else phase,
            client_id=self.client_id if client_id is None else client_id,
        )

    def _seed_of(self, stream: str) -> int:
        place = f"{self.seed}|{self.round}|{self.phase}|{self.client_id}|{stream}"
        return int.from_bytes(blake2b(place.encode(), digest_size=8, key=self.secret).digest(), "big") >> 1
