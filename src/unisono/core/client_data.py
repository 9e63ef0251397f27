"""ClientData: the samples that one client owns, as a method sees them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClientData:
    """One client's part of a data set.

    Args:
        samples: all samples of the data set (shared between clients of a simulation, never copied): uint8 images of shape
            (num_samples, channels, height, width) or float series of shape (num_samples, channels, length).
        indices: the rows that belong to this client, shape (len(self),).
        labels: this client's visible labels, shape (len(self),), -1 where hidden; None where the method may see none.
        device: where batches go.
        num_clustered_rows: rows of ``samples`` from this one on are for losses of single samples only, never for losses of
            clusters (the unlabelled part of a data set); None where there are no such rows.
    """

    samples: Tensor
    indices: Tensor
    labels: Tensor | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    num_clustered_rows: int | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def subset(self, positions: Tensor) -> ClientData:
        """Return the same client with some of its samples only.

        Args:
            positions: numbers below len(self), or a mask of shape (len(self),).
        """
        labels = None if self.labels is None else self.labels[positions]
        return replace(self, indices=self.indices[positions], labels=labels)

    @property
    def clustered(self) -> ClientData:
        """The same client without the samples that are for the instance loss only."""
        return self if self.num_clustered_rows is None else self.subset(~self.instance_only)

    @property
    def instance_only(self) -> Tensor:
        """Mask of the samples that are for the instance loss only, shape (len(self),)."""
        if self.num_clustered_rows is None:
            return torch.zeros(len(self), dtype=torch.bool)
        return self.indices >= self.num_clustered_rows

    def batch(self, positions: Tensor) -> Tensor:
        """Return the samples at these positions, on the device, as floats: images in [0, 1], series as they are.

        Args:
            positions: numbers below len(self), shape (batch,).
        """
        return as_float(self.samples[self.indices[positions]].to(self.device, non_blocking=True))

    def label_batch(self, positions: Tensor) -> Tensor:
        """Return the visible labels at these positions, shape (batch,), -1 where hidden."""
        if self.labels is None:
            raise RuntimeError("this method declared no need of labels, so it is given none")
        return self.labels[positions].to(self.device, non_blocking=True)


def as_float(samples: Tensor) -> Tensor:
    """Return uint8 images scaled to [0, 1]; floats as they are."""
    return samples.float().div_(255) if samples.dtype == torch.uint8 else samples.float()
