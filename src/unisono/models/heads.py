"""Heads: networks on top of a backbone's features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from unisono.models.norms import Norm, make_norm


def mlp(dims: Sequence[int], norm: Norm | None = "group", last_norm: bool = False) -> nn.Sequential:
    """Return a net with one linear layer per pair of neighbours in ``dims``: Linear, norm, ReLU, ..., Linear.

    The heads of the papers, for features of width h:

    - Orchestra, SimCLR, SpecLoss and RotPred there: ``mlp((h, 512, 512), last_norm=True)``.
    - SimCLR, spectral and client-id projectors of federated SimCLR with user verification: ``mlp((h, 2048, 128), norm=None)``;
      its SimSiam: the same with ``norm="group"``, and the predictor ``mlp((128, 2048, 128))``.
    - SimSiam (Chen & He 2021): projector ``mlp((h, 2048, 2048, 2048), last_norm=True)``, predictor with a bottleneck
      ``mlp((2048, 512, 2048))``.
    - BYOL in Orchestra's baselines: projector ``mlp((h, 1024, 512))``, predictor ``mlp((512, 1024, 512))``.

    Args:
        dims: widths from input to output, at least two.
        norm: after every linear layer but the last; ``batch`` cannot train on a batch of one. A linear layer before BatchNorm
            has no bias, which the norm would cancel.
        last_norm: also normalise the output, without scale and shift, as SimSiam's projector does.
    """
    if len(dims) < 2:
        raise ValueError(f"an MLP needs an input and an output width, got {tuple(dims)}")
    if last_norm and norm is None:
        raise ValueError("last_norm needs a norm, got norm=None")
    layers = nn.Sequential()
    num_layers = len(dims) - 1
    for position, (in_dim, out_dim) in enumerate(pairwise(dims), start=1):
        last = position == num_layers
        kind = norm if not last or last_norm else None
        layers.append(nn.Linear(in_dim, out_dim, bias=kind != "batch"))
        if kind is not None:
            layers.append(make_norm(kind, out_dim, spatial_dims=0, affine=not last))
        if not last:
            layers.append(nn.ReLU(inplace=True))
    return layers


class Normalized(nn.Module):
    """A net whose output rows have unit L2 norm.

    Args:
        net: gives an output of shape (batch, dim).
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.net(x), dim=1)


class NearestCentroid(nn.Module):
    """Samples to cluster scores: similarity to the global centroids over the temperature."""

    centroids: Tensor

    def __init__(self, encoder: nn.Module, projector: nn.Module, centroids: Tensor, temperature: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector
        self.register_buffer("centroids", centroids)
        self.temperature = temperature

    def forward(self, x: Tensor) -> Tensor:
        """Return scores, shape (batch, num_clusters)."""
        return F.normalize(self.projector(self.encoder(x)), dim=1) @ self.centroids.T / self.temperature
