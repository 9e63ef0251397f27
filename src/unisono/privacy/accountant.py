"""Epsilon spent by user-level differential privacy: clipped client updates, Gaussian noise on their sum.

The mechanism is DP-FedAvg (McMahan et al., "Learning Differentially Private Recurrent Language Models", 2018): every update is
clipped to the norm C, the sum gets noise of deviation ``noise_multiplier * C``, and is divided by a number that does not
depend on who took part. The Renyi accounting is done by the library dp-accounting.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unisono.core.errors import UserError

Sampling = Literal["poisson", "fixed", "none"]

RELATIONS: dict[Sampling, str] = {
    "poisson": "adding or removing one client",
    "fixed": "replacing one client by another",
    "none": "adding or removing one client",
}


class UserLevelAccountant:
    """The privacy loss of whole clients over the rounds of a run.

    Args:
        noise_multiplier: standard deviation of the noise on the sum of clipped updates, over the clipping norm.
        delta: the probability with which the guarantee may fail; well below 1 / num_clients.
        sampling: how a round's cohort comes about. ``poisson``: every client joins with probability cohort_size / num_clients,
            independently; neighbours differ by adding or removing one client. ``fixed``: exactly cohort_size clients, uniformly
            without replacement; neighbours differ by replacing one client, which moves the sum by up to 2 C. ``none``: cohorts
            are not drawn at random (availability), so every client counts as present in every round; add or remove one.
        num_clients: size of the federation.
        cohort_size: clients per round, the expected number for ``poisson``.
    """

    def __init__(self, noise_multiplier: float, delta: float, sampling: Sampling, num_clients: int, cohort_size: int) -> None:
        if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
            raise UserError(f"noise_multiplier must be a finite number >= 0, got {noise_multiplier}.")
        if not 0 < delta < 1:
            raise UserError(f"delta must be between 0 and 1, got {delta}.")
        if sampling not in get_args(Sampling):
            raise UserError(f"sampling must be one of {', '.join(get_args(Sampling))}, got {sampling!r}.")
        if not 1 <= cohort_size <= num_clients:
            raise UserError(
                f"The cohort must hold between 1 and {num_clients} clients, the size of the federation, got {cohort_size}."
            )
        self._library = _dp_accounting()
        self.noise_multiplier = noise_multiplier
        self.delta = delta
        self.sampling: Sampling = sampling
        self.num_clients = num_clients
        self.cohort_size = cohort_size
        self.more_rounds: Callable[[], int] = lambda: 0
        """Rounds beside those that are asked about: a real federation's that ended before their checkpoint."""

    def epsilon(self, num_rounds: int) -> float:
        """Return epsilon at ``delta`` after so many rounds, infinite without noise; only the first call is slow."""
        num_rounds += self.more_rounds()
        if num_rounds == 0:
            return 0.0
        if self.noise_multiplier == 0:
            return math.inf
        orders, divergences = self._round
        return float(self._library.rdp.compute_epsilon(orders, num_rounds * divergences, self.delta)[0])

    def statement(self, num_rounds: int) -> str:
        """Return one sentence for the report: what is promised, to whom, and over how many rounds."""
        if self.noise_multiplier == 0:
            return "The sums of model updates are not differentially private: noise_multiplier is 0, so epsilon is infinite."
        draws = {
            "poisson": f"each client joins a round independently with probability {self.cohort_size / self.num_clients:.4g}",
            "fixed": f"each round draws exactly {self.cohort_size} of {self.num_clients} clients uniformly",
            "none": "cohorts are not random, so nothing is gained by sampling",
        }
        return (
            f"Over {num_rounds + self.more_rounds()} rounds the noisy sums of model updates are "
            f"({self.epsilon(num_rounds):.4g}, {self.delta:g})-"
            f"differentially private for whole clients: neighbouring federations differ by {RELATIONS[self.sampling]}, "
            f"noise multiplier {self.noise_multiplier:g}, {draws[self.sampling]} (Renyi accounting); "
            "what clients send beside model updates is not covered."
        )

    @cached_property
    def _round(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The Renyi orders, and the divergence of one round at each."""
        dp = self._library
        gaussian = dp.GaussianDpEvent(self.noise_multiplier)
        if self.sampling == "none":
            accountant = dp.rdp.RdpAccountant().compose(gaussian)
            return accountant.orders, accountant.rdp
        if self.sampling == "poisson":
            event = dp.PoissonSampledDpEvent(self.cohort_size / self.num_clients, gaussian)
            accountant, sensitivity = dp.rdp.RdpAccountant(), 1
        else:
            event = dp.SampledWithoutReplacementDpEvent(
                self.num_clients, self.cohort_size, dp.GaussianDpEvent(self.noise_multiplier * _replace_one_factor(dp))
            )
            accountant, sensitivity = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE), 2
        with _quiet():
            accountant.compose(event)
        # Sampling never harms (Renyi divergence is quasi-convex), but the library's bound for a large cohort can exceed the
        # divergence without sampling, and is infinite at orders where its series does not converge.
        unsampled = accountant.orders / 2 * (sensitivity / self.noise_multiplier) ** 2
        return accountant.orders, np.minimum(accountant.rdp, unsampled)


def gaussian_epsilon(releases: Mapping[float, int], delta: float) -> float:
    """Return epsilon at ``delta`` of one client that adds Gaussian noise to its clipped updates itself.

    Args:
        releases: how many updates left with which noise, in units of the clipping norm; without noise epsilon is infinite.
        delta: the probability with which the guarantee may fail.
    """
    if any(noise == 0 and number for noise, number in releases.items()):
        return math.inf
    dp = _dp_accounting()
    accountant = dp.rdp.RdpAccountant()
    for noise, number in releases.items():
        accountant.compose(dp.GaussianDpEvent(noise), number)
    return float(accountant.get_epsilon(delta)) if releases else 0.0


def _replace_one_factor(dp: Any) -> float:
    """Return the factor for a noise multiplier with which the library sees the sensitivity 2 C of replacing one client.

    Versions up to 0.6 at least take the sensitivity to be C under every relation, against their own documentation
    (github.com/google/differential-privacy/issues/378), so the factor is 1/2 for these and 1 for a version that is mended.
    The divergence of order 2 of the plain mechanism with noise 1 tells: 1 for sensitivity C, 4 for 2 C.
    """
    accountant = dp.rdp.RdpAccountant([2.0], dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(1, 1, dp.GaussianDpEvent(1.0)))
    return math.sqrt(accountant.rdp[0] / 4)


def _dp_accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError as error:
        raise UserError("Accounting for differential privacy needs the extra 'dp': pip install 'unisono[dp]'.") from error
    return dp_accounting


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings about orders that do not converge: these get the bound without sampling instead."""
    logger = logging.getLogger("absl")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled
