"""dirichlet: class priors from a Dirichlet distribution, balanced so that clients have near-equal sizes.

The partition of "Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering" (Lubana et al. 2022, C.1),
balanced as in its public code: each class draws its shares over clients from Dirichlet(alpha), Sinkhorn scaling gives every
client the same total and every class its own, and shares are rounded down. Figures of the paper's Table 4 are those of that
code's seed to the digit (1.08, 4.69 and 29.3 classes per client; its rows for 10 silos come out with 8).

The public code drops what rounding leaves over, and stops scaling after 100 steps, when sizes at alpha = 0.001 still run from
430 to 730. Here scaling goes on until sizes agree, and what is left over goes to clients that hold the class already: every
sample is used once, and the number of classes per client stays as it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unisono.data.dirichlet import log_gamma_draws
from unisono.data.partition import Integers, PartitionConfig, Samples, deal_classes, even_sizes, partitioners

Reals = NDArray[np.float64]


@partitioners.register("dirichlet")
def partition_dirichlet(config: PartitionConfig, samples: Samples, rng: np.random.Generator) -> Integers:
    """Near-equal parts with Dirichlet class proportions."""
    classes = samples.classes(config.scheme)
    class_sizes = np.bincount(classes)
    sizes = even_sizes(samples.num_samples, config.num_clients)
    log_shares = log_gamma_draws(np.full((config.num_clients, len(class_sizes)), config.alpha), rng)
    counts = round_shares(balance(log_shares, sizes, class_sizes), sizes, class_sizes, config.min_samples)
    return deal_classes(classes, counts, rng)


def balance(log_shares: Reals, sizes: Integers, class_sizes: Integers, max_steps: int = 2000, absorb_every: int = 20) -> Reals:
    """Return ``diag(u) exp(log_shares) diag(v)`` with the given margins (Sinkhorn), shape (num_clients, num_classes).

    Columns sum to ``class_sizes`` exactly, rows to ``sizes`` within half a sample unless ``max_steps`` end it earlier.
    Scalings are absorbed into the logarithms now and then, so shares of e^-10000, usual at alpha = 1e-3, do no harm.
    """
    by_client = np.log(sizes)[:, None] - _log_sum_exp(log_shares, axis=1)
    by_class = np.log(class_sizes)[None] - _log_sum_exp(log_shares + by_client, axis=0)
    shares = np.exp(log_shares + by_client + by_class)
    for _ in range(0, max_steps, absorb_every):
        if np.abs(shares.sum(axis=1) - sizes).max() < 0.5:
            break
        column = np.ones(shares.shape[1])
        for _ in range(absorb_every):
            row = sizes / (shares @ column)
            column = class_sizes / (row @ shares)
        by_client += np.log(row)[:, None]
        by_class += np.log(column)[None]
        shares = np.exp(log_shares + by_client + by_class)
    return shares


def round_shares(shares: Reals, sizes: Integers, class_sizes: Integers, least: int = 1) -> Integers:
    """Return whole numbers near ``shares``; columns sum to ``class_sizes``, rows to ``sizes`` within 1% or one sample.

    Shares are rounded down; what is left over of a class goes first to clients that hold it, then where its share was largest.

    Args:
        shares: shape (num_clients, num_classes), with sums near those asked for.
        sizes: samples per client, shape (num_clients,).
        class_sizes: samples per class, shape (num_classes,), with the same sum as sizes.
        least: no client gets fewer.
    """
    slack = np.minimum(np.maximum(sizes // 100, 1), sizes - least)
    counts = np.floor(shares + 1e-6).astype(np.int64)
    for client in np.flatnonzero(counts.sum(axis=1) > sizes):
        _return_surplus(counts[client], int(counts[client].sum() - sizes[client]))
    held, remainder = (counts > 0).astype(np.float64), shares - np.floor(shares)
    anything = np.ones_like(shares)
    # The small constant lets a holder without remainder come last, not never.
    _hand_out(counts, sizes, class_sizes, wanted=held * shares * (remainder + 0.01))
    _hand_out(counts, sizes - slack, class_sizes, wanted=remainder)
    while (counts.sum(axis=1) < sizes - slack).any():
        _hand_out(counts, sizes - slack, class_sizes, wanted=anything)
    _hand_out(counts, sizes + slack, class_sizes, wanted=held)
    _hand_out(counts, sizes, class_sizes, wanted=remainder)
    while counts.sum() < sizes.sum():
        _hand_out(counts, sizes, class_sizes, wanted=anything)
    return counts


def _return_surplus(row: Integers, surplus: int) -> None:
    while surplus > 0:
        largest = row.argmax()
        returned = min(surplus, int(row[largest]))
        row[largest] -= returned
        surplus -= returned


def _hand_out(counts: Integers, sizes: Integers, class_sizes: Integers, wanted: Reals) -> None:
    """Assign what is left of each class, at most one sample each, to clients below their size that want it most."""
    room = np.maximum(sizes - counts.sum(axis=1), 0)
    still_wanted = wanted.sum(axis=1)
    for number, rest in enumerate(class_sizes - counts.sum(axis=0)):
        # A client with much room and few classes to come must take its chance now.
        keen = wanted[:, number] * room / np.maximum(still_wanted, 1e-12)
        chosen = np.argsort(-keen, kind="stable")[: min(int(rest), int((keen > 0).sum()))]
        counts[chosen, number] += 1
        room[chosen] -= 1
        still_wanted = still_wanted - wanted[:, number]


def _log_sum_exp(values: Reals, axis: int) -> Reals:
    highest = values.max(axis=axis, keepdims=True)
    return np.asarray(highest + np.log(np.exp(values - highest).sum(axis=axis, keepdims=True)))
