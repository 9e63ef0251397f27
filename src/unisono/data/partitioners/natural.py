"""natural: every sample stays with whoever brought it."""

from __future__ import annotations

import numpy as np

from unisono.core.errors import UserError
from unisono.data.partition import Integers, PartitionConfig, Samples, partitioners


@partitioners.register("natural")
def partition_by_owner(config: PartitionConfig, samples: Samples, rng: np.random.Generator) -> Integers:
    """One client per owner, in ascending order of the owners' numbers."""
    if samples.owners is None:
        raise UserError("partition.scheme 'natural' needs samples with owners, and this data set has none: use 'iid'.")
    return np.unique(samples.owners, return_inverse=True)[1].astype(np.int64)
