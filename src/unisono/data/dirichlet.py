"""Dirichlet draws that work at small concentrations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unisono.core.errors import UserError

SMALLEST = 1e-9
"""Smallest concentration; logarithms of draws below it overflow in sums."""


def log_gamma_draws(concentration: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return logarithms of gamma variables, shape of concentration; exponentiated and normalised they are Dirichlet.

    At a concentration of 1e-3 half of all gamma variables are below the smallest float, so only logarithms keep their order.
    Gamma(a) equals Gamma(a + 1) times U^(1/a) in law.
    """
    if concentration.size and concentration.min() < SMALLEST:
        raise UserError(
            f"The concentration of a Dirichlet distribution must be at least {SMALLEST:g}, got {concentration.min():.3g}: "
            "raise partition.alpha, partition.fine_alpha or shift.alpha; 0.001 already gives most clients a single class."
        )
    return np.log(rng.standard_gamma(concentration + 1)) + np.log1p(-rng.random(concentration.shape)) / concentration


def normalised(log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return weights that sum to 1, shape of log_weights, a vector; -inf is weight 0."""
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum())
