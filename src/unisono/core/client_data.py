"""ClientData: the samples that one client owns, as a method sees them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unisono.core.mapped import note_read

LARGEST = {torch.uint8: 255, torch.uint16: 65535}
"""Largest value of images by their type; floats lie in [0, 1]."""


@dataclass(frozen=True)
class ClientData:
    """One client's part of a data set.

    Args:
        samples: all samples of the data set (shared between clients of a simulation, never copied): images of shape
            (num_samples, channels, height, width), uint8, uint16 or floats in [0, 1], or float series of shape (num_samples,
            channels, length).
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
        batch = as_float(self.samples[self.indices[positions]].to(self.device, non_blocking=True))
        note_read(self.samples, len(positions))
        return batch

    def label_batch(self, positions: Tensor) -> Tensor:
        """Return the visible labels at these positions, shape (batch,), -1 where hidden."""
        if self.labels is None:
            raise RuntimeError("this method declared no need of labels, so it is given none")
        return self.labels[positions].to(self.device, non_blocking=True)


def as_float(samples: Tensor) -> Tensor:
    """Return images of 8 or 16 bits scaled to [0, 1]; floats as they are."""
    if samples.is_floating_point():
        return samples.float()
    return samples.float().div_(LARGEST[samples.dtype])


def as_bytes(samples: Tensor) -> Tensor:
    """Return images for people to look at, uint8 in one or three channels; the brightest of deeper ones becomes 255."""
    images = samples if samples.shape[1] in (1, 3) else samples[:, :1]
    if images.dtype == torch.uint8 or not images.numel():
        return images.to(torch.uint8)
    shares = as_float(images)
    return (shares * (255 / shares.max().clamp(min=1e-6))).round_().clamp_(0, 255).to(torch.uint8)
