"""iid: every client draws from the whole data set, in near-equal numbers."""

from __future__ import annotations

import numpy as np

from unisono.data.partition import Integers, PartitionConfig, Samples, even_sizes, partitioners


@partitioners.register("iid")
def partition_iid(config: PartitionConfig, samples: Samples, rng: np.random.Generator) -> Integers:
    """Near-equal random parts; labels play no role."""
    sizes = even_sizes(samples.num_samples, config.num_clients)
    return rng.permutation(np.repeat(np.arange(config.num_clients), sizes))
