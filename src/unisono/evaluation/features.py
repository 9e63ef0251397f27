"""Outputs of a frozen network for many samples: features of an encoder, clusters of a cluster model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unisono.core.client_data import as_float
from unisono.core.errors import UserError


def embed(
    encoder: nn.Module,
    samples: Tensor,
    device: torch.device | str = "cpu",
    batch_size: int = 512,
    on_batch: Callable[[int], None] | None = None,
) -> Tensor:
    """Return the features of every sample in eval mode, float32 on the CPU, shape (num_samples, feature_dim).

    Args:
        encoder: samples to features; moved to ``device``, its training flags are left as they were.
        samples: uint8 images, shape (num_samples, channels, height, width), or float series, (num_samples, channels, length).
        device: where the encoder runs.
        batch_size: samples per forward pass.
        on_batch: told after each batch how many samples it held, for a progress bar.
    """
    if len(samples) == 0:
        raise UserError("There are no samples to embed; give at least one.")
    features = []
    with evaluating(encoder.to(device)):
        for batch in samples.split(batch_size):
            with torch.inference_mode():
                features.append(encoder(as_float(batch.to(device))).float().cpu())
            if on_batch is not None:
                on_batch(len(batch))
    # Joined outside of inference mode, so that a probe may train on the result.
    return torch.cat(features)


def assign(
    cluster_model: nn.Module, samples: Tensor, device: torch.device | str = "cpu", batch_size: int = 512
) -> tuple[Tensor, int]:
    """Return the cluster of every sample, shape (num_samples,), and the number of clusters.

    Args:
        cluster_model: samples to cluster scores, shape (batch, num_clusters); the highest score wins.
        samples: as for ``embed``.
        device: where the cluster_model runs.
        batch_size: samples per forward pass.
    """
    scores = embed(cluster_model, samples, device, batch_size)
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
