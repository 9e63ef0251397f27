"""quantity-skew: every client draws from the whole data set, in log-normally different numbers."""

from __future__ import annotations

import numpy as np

from unisono.data.partition import Integers, PartitionConfig, Samples, partitioners


@partitioners.register("quantity-skew")
def partition_by_quantity(config: PartitionConfig, samples: Samples, rng: np.random.Generator) -> Integers:
    """Random parts whose sizes are ``min_samples`` plus a log-normal share of the rest; labels play no role."""
    spare = samples.num_samples - config.num_clients * config.min_samples
    weights = rng.lognormal(sigma=config.sigma, size=config.num_clients)
    # Rounding the running total, not each share, makes the sizes sum to the number of samples.
    edges = np.rint(spare * np.cumsum(weights) / weights.sum()).astype(np.int64)
    sizes = config.min_samples + np.diff(edges, prepend=0)
    return rng.permutation(np.repeat(np.arange(config.num_clients), sizes))
