"""pachinko: each client draws superclasses from Dirichlet(alpha), and classes inside them from Dirichlet(fine_alpha).

The split of CIFAR-100 in Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, appendix F), and in TensorFlow Federated:
the Pachinko allocation of Li and McCallum (2006) over the 20 superclasses (alpha 0.1) and their five classes each (10). Samples
are drawn without replacement; what has run out is taken out of the proportions, which are renormalised. Unlike dirichlet-prior,
a concentration counts for each superclass and class: it is not multiplied by a prior.
"""

from __future__ import annotations

import numpy as np

from unisono.core.errors import UserError
from unisono.data.dirichlet import log_gamma_draws
from unisono.data.partition import Integers, PartitionConfig, Samples, deal_classes, even_sizes, partitioners
from unisono.data.partitioners.dirichlet_prior import draw_from_what_is_left


@partitioners.register("pachinko")
def partition_pachinko(config: PartitionConfig, samples: Samples, rng: np.random.Generator) -> Integers:
    """Near-equal parts, client after client; the last ones take what is left."""
    classes = samples.classes(config.scheme)
    if samples.labels is None or not samples.superclasses:
        raise UserError(
            "partition.scheme 'pachinko' needs classes in superclasses, and this data set has none: use cifar100, or "
            "'dirichlet-prior'."
        )
    parent = np.asarray(samples.superclasses, dtype=np.int64)[np.unique(samples.labels)]
    families = [np.flatnonzero(parent == number) for number in np.unique(parent)]
    left = np.bincount(classes)
    counts = np.zeros((config.num_clients, len(left)), dtype=np.int64)
    for client, size in enumerate(even_sizes(samples.num_samples, config.num_clients).tolist()):
        coarse = log_gamma_draws(np.full(len(families), config.alpha), rng)
        fine = [log_gamma_draws(np.full(len(family), config.fine_alpha), rng) for family in families]
        left_in_families = np.array([left[family].sum() for family in families])
        shares = draw_from_what_is_left(coarse, left_in_families, size, rng)
        for family, weights, share in zip(families, fine, shares.tolist(), strict=True):
            in_family = left[family]
            counts[client, family] = draw_from_what_is_left(weights, in_family, share, rng)
            left[family] = in_family
    return deal_classes(classes, counts, rng)
