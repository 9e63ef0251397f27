"""iid: every client draws from the whole data set, in near-equal numbers.

With ``stratified = true`` clients have near-equal numbers of each class, as in "Federated Momentum Contrastive Clustering".
"""

from __future__ import annotations

import numpy as np

from unisono.data.partition import Integers, PartitionConfig, Samples, even_sizes, partitioners


@partitioners.register("iid")
def partition_iid(config: PartitionConfig, samples: Samples, rng: np.random.Generator) -> Integers:
    """Near-equal random parts; labels play no role unless the parts are stratified."""
    if config.stratified:
        return _stratified(samples.classes("iid with partition.stratified = true"), config.num_clients, rng)
    sizes = even_sizes(samples.num_samples, config.num_clients)
    return rng.permutation(np.repeat(np.arange(config.num_clients), sizes))


def _stratified(classes: Integers, num_clients: int, rng: np.random.Generator) -> Integers:
    """Return the client of every sample, dealt one by one to the clients in turn, class after class in random order."""
    shuffled = rng.permutation(len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    client_of = np.empty(len(classes), dtype=np.int64)
    client_of[by_class] = np.arange(len(classes)) % num_clients
    return client_of
