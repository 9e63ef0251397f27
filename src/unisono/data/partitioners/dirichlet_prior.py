"""dirichlet-prior: each client has class proportions q ~ Dirichlet(alpha x prior) and draws from them without replacement.

Hsu, Qi, Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification" (2019), in the
form of Reddi et al. 2021, where a class that has run out is taken out of q and q is renormalised. Because alpha is multiplied
by the prior, alpha = 0.1 on CIFAR-10 means a concentration of 0.01 per class.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unisono.data.dirichlet import log_gamma_draws, normalised
from unisono.data.partition import Integers, PartitionConfig, Samples, deal_classes, even_sizes, partitioners


@partitioners.register("dirichlet-prior")
def partition_dirichlet_prior(config: PartitionConfig, samples: Samples, rng: np.random.Generator) -> Integers:
    """Near-equal parts, client after client; the last ones take what is left."""
    classes = samples.classes(config.scheme)
    left = np.bincount(classes)
    concentration = config.alpha * left / len(classes)
    counts = np.stack(
        [
            draw_from_what_is_left(log_gamma_draws(concentration, rng), left, size, rng)
            for size in even_sizes(samples.num_samples, config.num_clients).tolist()
        ]
    )
    return deal_classes(classes, counts, rng)


def draw_from_what_is_left(log_weights: NDArray[np.float64], left: Integers, size: int, rng: np.random.Generator) -> Integers:
    """Return the number of samples of each class for one client, shape (num_classes,); ``left`` is lowered by as much.

    Args:
        log_weights: logarithms of the classes' proportions, not normalised, shape (num_classes,).
        left: samples of each class that nobody has yet, same shape.
        size: how many to draw, at most the sum of ``left``.
        rng: draws them.
    """
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        proportions = normalised(np.where(left > 0, log_weights, -np.inf))
        drawn = np.minimum(rng.multinomial(missing, proportions), left)
        taken += drawn
        left -= drawn
    return taken
