"""classes-per-client: each client holds exactly C classes, and the classes are spread evenly over clients.

The setting of "Embedding Alignment for Unsupervised Federated Learning via Smart Data Exchange" (CF-CL): 10 devices on
Fashion-MNIST, "each device has 6K datapoints from two of 10 classes", so each class is on two devices.
"""

from __future__ import annotations

import numpy as np

from unisono.core.errors import UserError
from unisono.data.partition import Integers, PartitionConfig, Samples, deal_classes, even_sizes, partitioners


@partitioners.register("classes-per-client")
def partition_classes_per_client(config: PartitionConfig, samples: Samples, rng: np.random.Generator) -> Integers:
    """Each class cut into near-equal shards, one for each client that holds it."""
    classes = samples.classes(config.scheme)
    class_sizes = np.bincount(classes)
    _check(config, len(class_sizes))
    holds = _hand_out(len(class_sizes), config.num_clients, config.classes_per_client, rng)
    if (short := np.flatnonzero(holds.sum(axis=0) > class_sizes)).size:
        raise UserError(
            f"partition.classes_per_client must be lower, got {config.classes_per_client}: one class has "
            f"{class_sizes[short[0]]} samples for {holds[:, short[0]].sum()} of {config.num_clients} clients."
        )
    counts = np.zeros_like(holds)
    for number, size in enumerate(class_sizes):
        holders = rng.permutation(np.flatnonzero(holds[:, number]))
        counts[holders, number] = even_sizes(size, len(holders))
    return deal_classes(classes, counts, rng)


def _check(config: PartitionConfig, num_classes: int) -> None:
    least = -(-num_classes // config.num_clients)
    if not least <= config.classes_per_client <= num_classes:
        raise UserError(
            f"partition.classes_per_client must be from {least} to {num_classes} for {num_classes} classes and "
            f"{config.num_clients} clients, got {config.classes_per_client}."
        )


def _hand_out(num_classes: int, num_clients: int, classes_per_client: int, rng: np.random.Generator) -> Integers:
    """Return a 0/1 table of shape (num_clients, num_classes): rows sum to classes_per_client, columns are near-equal."""
    places = rng.permutation(even_sizes(num_clients * classes_per_client, num_classes))
    holds = np.zeros((num_clients, num_classes), dtype=np.int64)
    for row in holds:
        # The classes with most places left go first, else the last client could be left with one class twice.
        order = np.lexsort((rng.random(num_classes), -places))
        row[order[:classes_per_client]] = 1
        places -= row
    return rng.permutation(holds)
