"""Choice of the clients of a round: availability, then a random cohort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import UserError


class CohortConfig(Section):
    """Number of clients per round, and their availability: the table ``[cohort]``."""

    participation: float | None = Field(None, gt=0, le=1, description="share of the clients that a round asks")
    size: int | None = Field(None, ge=1, description="number of clients that a round asks; replaces participation")
    sampling: Literal["fixed", "poisson"] = Field(
        "fixed", description="fixed: exactly that many, without replacement; poisson: every client by its own coin"
    )
    only: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="numbers of the clients that take part, from 0, such as [0] for one that trains alone; none: all"
    )
    availability: Literal["always", "bernoulli", "diurnal"] = Field("always", description="which clients can be reached")
    availability_rate: float = Field(0.8, gt=0, le=1, description="mean share of reachable clients (bernoulli, diurnal)")
    day_length: int = Field(24, ge=2, description="rounds per day (diurnal)")

    def expected_size(self, num_clients: int) -> int:
        """Return the number of clients that a round asks; all that take part where the config says nothing."""
        taking_part = self.num_taking_part(num_clients)
        if self.size is not None:
            if self.size > taking_part:
                raise UserError(
                    f"cohort.size must be at most the number of clients, {taking_part}, got {self.size}: "
                    f"ask fewer or {'name more in cohort.only' if self.only else 'raise partition.num_clients'}."
                )
            return self.size
        share = 1.0 if self.participation is None else self.participation
        return max(1, round(share * taking_part))

    def num_taking_part(self, num_clients: int) -> int:
        """Return the number of clients that a round may ask.

        Args:
            num_clients: size of the federation.
        """
        if self.only and max(self.only) >= num_clients:
            raise UserError(
                f"cohort.only names client {max(self.only)}, and the {num_clients} clients have the numbers 0 to "
                f"{num_clients - 1}."
            )
        return len(set(self.only)) if self.only else num_clients


def reachable_clients(config: CohortConfig, num_clients: int, ctx: Context, present: Sequence[int] | None = None) -> np.ndarray:
    """Return ids of the clients that can be reached in this round, ascending.

    A diurnal client is reachable with probability ``rate + min(rate, 1 - rate) * sin``, in its own time zone.

    Args:
        config: the table.
        num_clients: size of the federation.
        ctx: gives the draws.
        present: the clients of a real federation that are connected; None where all are.
    """
    simulated = _simulated_presence(config, num_clients, ctx)
    if config.only:
        simulated = np.intersect1d(simulated, np.asarray(config.only, dtype=np.int64))
    return simulated if present is None else np.intersect1d(simulated, np.asarray(present, dtype=np.int64))


def _simulated_presence(config: CohortConfig, num_clients: int, ctx: Context) -> np.ndarray:
    if config.availability == "always":
        return np.arange(num_clients)
    chance = np.full(num_clients, config.availability_rate)
    if config.availability == "diurnal":
        time_zone = Context(ctx.seed).numpy_rng("time zones").random(num_clients)
        swing = min(config.availability_rate, 1 - config.availability_rate)
        chance = chance + swing * np.sin(2 * np.pi * (ctx.round / config.day_length + time_zone))
    return np.flatnonzero(ctx.numpy_rng("availability").random(num_clients) < chance)


def draw_cohort(
    config: CohortConfig, num_clients: int, ctx: Context, attempt: int = 0, present: Sequence[int] | None = None
) -> list[int]:
    """Return ids of the clients that this round asks, ascending; depends on (seed, round, attempt, present) alone."""
    reachable = reachable_clients(config, num_clients, ctx, present)
    size = config.expected_size(num_clients)
    rng = ctx.numpy_rng(f"cohort {attempt}")
    if config.sampling == "poisson":
        chosen = reachable[rng.random(len(reachable)) < size / config.num_taking_part(num_clients)]
    else:
        chosen = rng.choice(reachable, min(size, len(reachable)), replace=False, shuffle=False)
    return sorted(int(client_id) for client_id in chosen)
