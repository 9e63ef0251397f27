"""whole-classes: each class belongs wholly to one client.

The non-IID setting of "Federated Momentum Contrastive Clustering" (Miao and Koyuncu): "for the CIFAR-10 dataset with K = 2,
clients 1 and 2 have all the samples from classes 0 to 4 and 5 to 9". The split has no randomness.
"""

from __future__ import annotations

import numpy as np

from unisono.core.errors import UserError
from unisono.data.partition import Integers, PartitionConfig, Samples, even_sizes, partitioners


@partitioners.register("whole-classes")
def partition_whole_classes(config: PartitionConfig, samples: Samples, rng: np.random.Generator) -> Integers:
    """Consecutive blocks of classes, near-equal in number, one block per client."""
    classes = samples.classes(config.scheme)
    num_classes = int(classes.max()) + 1
    if config.num_clients > num_classes:
        raise UserError(f"partition.num_clients must be <= {num_classes} for whole-classes, got {config.num_clients}.")
    client_of_class = np.repeat(np.arange(config.num_clients), even_sizes(num_classes, config.num_clients))
    return client_of_class[classes]
