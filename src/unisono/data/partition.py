"""Assignment of samples to clients, a pure function of config, labels and seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.registry import Registry
from unisono.data.datasets import Dataset

Integers = NDArray[np.int64]


class PartitionConfig(Section):
    """The table ``[partition]``: how a data set is dealt to clients."""

    scheme: str = Field(
        "dirichlet",
        description="iid, dirichlet, dirichlet-prior, pachinko, classes-per-client, whole-classes, quantity-skew or natural",
    )
    num_clients: int = Field(50, ge=1, description="number of clients; ignored by natural, where the owners decide")
    alpha: float = Field(
        0.1,
        gt=0,
        description="concentration of dirichlet, dirichlet-prior and, over superclasses, pachinko; small means few classes",
    )
    fine_alpha: float = Field(10.0, gt=0, description="concentration of pachinko over the classes of a superclass")
    classes_per_client: int = Field(2, ge=1, description="classes that each client holds under classes-per-client")
    sigma: float = Field(1.0, ge=0, description="log-normal spread of the sizes under quantity-skew; 0 means equal sizes")
    stratified: bool = Field(False, description="iid: every client gets the same number of each class, within one sample")
    seed: int | None = Field(None, ge=0, description="draws the split, so that runs of several seeds share it; unset: run.seed")
    min_samples: int = Field(1, ge=1, description="least number of samples per client; natural only reports clients below it")


@dataclass(frozen=True)
class Samples:
    """The parts of a data set that a partitioner may look at.

    Args:
        num_samples: size of the data set.
        labels: shape (num_samples,), None where there are none.
        owners: who brought each sample, shape (num_samples,), None where nobody did.
        superclasses: the superclass of each label, by its number; empty where there are none.
    """

    num_samples: int
    labels: Integers | None = None
    owners: Integers | None = None
    superclasses: tuple[int, ...] = ()

    def classes(self, scheme: str) -> Integers:
        """Return the labels as numbers 0, 1, ... without gaps, shape (num_samples,); raise a UserError if one is missing."""
        if self.labels is None:
            raise UserError(
                f"partition.scheme {scheme!r} needs labels and this data set has none: use 'iid', 'quantity-skew' or 'natural'."
            )
        hidden = int((self.labels < 0).sum())
        if hidden:
            raise UserError(
                f"partition.scheme {scheme!r} needs a label for every sample, and {hidden} of {self.num_samples} have none: "
                "use 'iid', 'quantity-skew' or 'natural'."
            )
        return np.unique(self.labels, return_inverse=True)[1].astype(np.int64)


Partitioner = Callable[[PartitionConfig, Samples, np.random.Generator], Integers]
"""Function that returns the client of every sample, shape (num_samples,), so no sample can be lost or assigned twice."""

partitioners: Registry[Partitioner] = Registry("partitioner", "unisono.data.partitioners")


class Rows(Sequence[Tensor]):
    """The rows of every client, cut from one tensor when they are read: a million clients cost no million tensors.

    Args:
        rows: of all clients, one client after the other.
        sizes: rows per client, shape (num_clients,).
    """

    def __init__(self, rows: Tensor, sizes: Tensor) -> None:
        self.rows, self.sizes = rows, sizes
        self._ends = sizes.cumsum(0)

    @staticmethod
    def of(parts: Sequence[Tensor]) -> Rows:
        """Return the same rows in one tensor."""
        if isinstance(parts, Rows):
            return parts
        return Rows(torch.cat(list(parts)), torch.tensor([len(part) for part in parts]))

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> tuple[Tensor, ...]: ...
    def __getitem__(self, client: int | slice) -> Tensor | tuple[Tensor, ...]:
        if isinstance(client, slice):
            return tuple(self[number] for number in range(*client.indices(len(self))))
        end = int(self._ends[client])  # an IndexError behind the last client ends a loop
        return self.rows[end - int(self.sizes[client]) : end]


@dataclass(frozen=True)
class Partition:
    """The split of a data set into clients; every index belongs to exactly one of them.

    Args:
        indices: one int64 tensor of ascending sample numbers per client.
        notes: sentences worth telling the user.
    """

    indices: Sequence[Tensor]
    notes: tuple[str, ...] = ()

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.indices)

    @property
    def sizes(self) -> Tensor:
        """Samples per client, shape (num_clients,)."""
        return Rows.of(self.indices).sizes

    def class_counts(self, labels: Tensor) -> Tensor:
        """Return the samples per client and label, shape (num_clients, highest label + 1); hidden labels do not count."""
        num_classes = int(labels.max()) + 1 if len(labels) else 0
        rows = [labels[rows].to(torch.int64) for rows in self.indices]
        return torch.stack([torch.bincount(row[row >= 0], minlength=num_classes) for row in rows])


def mean_number_held(counts: Tensor, least_share: float = 0.0) -> float:
    """Return the mean number of classes (or other columns) that a client has samples of.

    Args:
        counts: samples per client and class.
        least_share: of a client's samples; a class with a smaller share does not count.
    """
    shares = counts.double() / counts.sum(dim=1, keepdim=True).clamp(min=1)
    return float(((counts > 0) & (shares >= least_share)).sum(dim=1).double().mean())


def partition_dataset(config: PartitionConfig, dataset: Dataset, seed: int) -> Partition:
    """Return the split of a data set's training samples that config and seed decide.

    The scheme deals the samples without the unlabelled part, which is dealt in near-equal random parts under every scheme.
    """
    number = dataset.num_clustered
    labels, owners = (None if values is None else values[:number] for values in (dataset.labels, dataset.owners))
    found = make_partition(config, labels, owners, number, seed, superclasses=dataset.superclasses)
    if dataset.num_unlabelled == 0:
        return found
    order = Context(seed).numpy_rng("partition-unlabelled").permutation(dataset.num_unlabelled) + number
    parts = np.split(order, np.cumsum(even_sizes(len(order), found.num_clients))[:-1])
    joined = [torch.cat((rows, torch.from_numpy(np.sort(part)))) for rows, part in zip(found.indices, parts, strict=True)]
    return replace(found, indices=tuple(joined))


def make_partition(
    config: PartitionConfig,
    labels: Tensor | None,
    owners: Tensor | None,
    num_samples: int,
    seed: int,
    *,
    superclasses: tuple[int, ...] = (),
) -> Partition:
    """Return the split that config, labels and seed decide.

    Args:
        config: the table ``[partition]``.
        labels: shape (num_samples,), None where there are none.
        owners: who brought each sample, shape (num_samples,), None where nobody did.
        num_samples: size of the data set.
        seed: the run's seed; the table's own comes first.
        superclasses: the superclass of each label, by its number; empty where there are none.
    """
    partitioner = partitioners[config.scheme]
    owners_decide = config.scheme == "natural"
    if not owners_decide and config.num_clients * config.min_samples > num_samples:
        raise UserError(
            f"partition.num_clients must be <= {num_samples // config.min_samples} for {num_samples} samples "
            f"(at least {config.min_samples} per client), got {config.num_clients}."
        )
    samples = Samples(num_samples, _numbers(labels), _numbers(owners), superclasses)
    own_seed = seed if config.seed is None else config.seed
    client_of = partitioner(config, samples, Context(own_seed).numpy_rng("partition"))
    if client_of.shape != (num_samples,) or (client_of < 0).any():
        raise ValueError(f"partitioner {config.scheme!r} must name a client >= 0 for each of {num_samples} samples")
    sizes = np.bincount(client_of, minlength=0 if owners_decide else config.num_clients)
    ordered = torch.from_numpy(np.argsort(client_of, kind="stable").astype(np.int64))
    return Partition(Rows(ordered, torch.from_numpy(sizes)), tuple(_notes(sizes, config.min_samples)))


def even_sizes(total: int, num_parts: int) -> Integers:
    """Return whole numbers that differ by at most one and sum to total, shape (num_parts,)."""
    return np.full(num_parts, total // num_parts, dtype=np.int64) + (np.arange(num_parts) < total % num_parts)


def deal_classes(classes: Integers, counts: Integers, rng: np.random.Generator) -> Integers:
    """Return the client of every sample when each client draws its counts at random from each class, shape (num_samples,).

    Args:
        classes: class of every sample, shape (num_samples,).
        counts: samples per client and class, shape (num_clients, num_classes); columns sum to the sizes of the classes.
        rng: decides which sample of a class goes where.
    """
    client_of = np.empty(len(classes), dtype=np.int64)
    for number, column in enumerate(counts.T):
        client_of[rng.permutation(np.flatnonzero(classes == number))] = np.repeat(np.arange(len(column)), column)
    return client_of


def _numbers(values: Tensor | None) -> Integers | None:
    return None if values is None else values.cpu().numpy().astype(np.int64)


def _notes(sizes: Integers, min_samples: int) -> list[str]:
    empty, small = np.flatnonzero(sizes == 0), np.flatnonzero((sizes > 0) & (sizes < min_samples))
    notes = []
    if len(empty):
        notes.append(f"{len(empty)} of {len(sizes)} clients hold no sample: {_listed(empty)}.")
    if len(small):
        notes.append(f"{len(small)} of {len(sizes)} clients hold fewer than {min_samples} samples: {_listed(small)}.")
    return notes


def _listed(clients: Integers, most: int = 10) -> str:
    return ", ".join(map(str, clients[:most])) + (", ..." if len(clients) > most else "")
