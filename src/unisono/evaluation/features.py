"""Outputs of a frozen network for many samples: features of an encoder, clusters of a cluster model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unisono.core.client_data import as_float
from unisono.core.errors import UserError
from unisono.core.mapped import batches
from unisono.core.progress import tell

MOST_VALUES = 1 << 23
"""Values of a batch, so that images of any size take a bounded amount of memory: 512 of three channels and 64 pixels fit."""


def fitting_batch(samples: Tensor, batch_size: int) -> int:
    """Return how many samples, at most batch_size, pass a network at a time."""
    return max(1, min(batch_size, MOST_VALUES // max(1, samples[0].numel())))


def embed(
    encoder: nn.Module,
    samples: Tensor,
    device: torch.device | str = "cpu",
    batch_size: int = 512,
    on_batch: Callable[[int], None] | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """Return the features of every sample in eval mode, float32 on the CPU, shape (num_samples, feature_dim).

    Args:
        encoder: samples to features; moved to ``device``, its training flags are left as they were.
        samples: images, shape (num_samples, channels, height, width), or float series, (num_samples, channels, length).
        device: where the encoder runs.
        batch_size: samples per forward pass; fewer of large ones.
        on_batch: told after each batch how many samples it held, for a progress bar.
        rows: positions of the samples to embed, never all of them in memory at once; None for all.
    """
    if len(samples if rows is None else rows) == 0:
        raise UserError("There are no samples to embed; give at least one.")
    features, num_done = [], 0
    with evaluating(encoder.to(device)):
        for batch in batches(samples, fitting_batch(samples, batch_size), rows):
            with torch.inference_mode():
                features.append(encoder(as_float(batch.to(device))).float().cpu())
            num_done += len(batch)
            tell("embedding samples", num_done, len(samples if rows is None else rows))
            if on_batch is not None:
                on_batch(len(batch))
    # Joined outside of inference mode, so that a probe may train on the result.
    return torch.cat(features)


def assign(
    cluster_model: nn.Module,
    samples: Tensor,
    device: torch.device | str = "cpu",
    batch_size: int = 512,
    rows: Tensor | None = None,
) -> tuple[Tensor, int]:
    """Return the cluster of every sample, shape (num_samples,), and the number of clusters.

    Args:
        cluster_model: samples to cluster scores, shape (batch, num_clusters); the highest score wins.
        samples: as for ``embed``.
        device: where the cluster_model runs.
        batch_size: samples per forward pass.
        rows: as for ``embed``.
    """
    scores = embed(cluster_model, samples, device, batch_size, rows=rows)
    return scores.argmax(dim=1), scores.shape[1]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a network into eval mode inside the block, and restore every submodule's own training flag afterwards."""
    training = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, flag in training:
            part.training = flag
