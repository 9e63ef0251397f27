"""Selection of points for neighbours: the reserve that a client pushes (6), and the points it draws for each of them (7)-(12).

Wagle et al., "Embedding Alignment for Unsupervised Federated Learning via Smart Data Exchange" (CF-CL), section III-B. The
formulas are in ``clustering/importance.py``; here they meet a device's data. The clusters and losses behind a draw are worked
out when a new global model comes, and kept until the next: in between only the temperature changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from unisono.clustering.importance import compare, draw_without_replacement, log_importance, mean_losses
from unisono.clustering.kmeans import kmeans, nearest_members
from unisono.core.addressing import address
from unisono.core.client_data import ClientData, as_float
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.payload import Payload, Tensors
from unisono.evaluation.delay import DelayConfig

Embed = Callable[[Payload, Tensor], Tensor]
"""Embeddings of samples through the networks of a payload, shape (num_samples, dim), on the CPU."""
EmbedPair = Callable[[Payload, Tensor], tuple[Tensor, Tensor]]
"""Embeddings of samples and of augmentations of them."""


class SelectionConfig(Section):
    """Choice of the points to exchange; the defaults are the paper's where it names one."""

    selection: Literal["importance", "uniform", "none"] = Field(
        "importance", description="how points for a neighbour are drawn; none exchanges nothing, which is FedAvg"
    )
    points_per_pull: int = Field(300, ge=1, description="n, points that a client pulls from each neighbour in a round")
    reserve: Literal["kmeans", "random"] = Field("kmeans", description="which points a client pushes at the start")
    num_reserve: int = Field(500, ge=1, description="K_reserve, how many of them")
    num_candidates: int = Field(1000, ge=1, description="K_approx, own points that are looked at between two aggregations")
    num_clusters: int = Field(4, ge=1, description="clusters of candidates and reserve points")
    importance_model: Literal["global", "local"] = Field(
        "global", description="whose networks measure the losses: the last global ones, or the receiver's own, sent every round"
    )
    importance_temperature: tuple[float, float] = Field(
        (4.0, 10.0), description="lambda, the weight of the losses, in the first round and after the last"
    )
    margin: float = Field(1.0, ge=0, description="m of the triplet loss")

    @property
    def by_importance(self) -> bool:
        """True if clients need each other's reserves."""
        return self.selection == "importance"


class ExchangeConfig(SelectionConfig):
    """Amount and timing of the exchange."""

    buffer: Literal["last", "unlimited"] = Field("last", description="points of the last pull only, or of all pulls")
    pull_steps: int | None = Field(
        None, ge=1, description="T_p, steps between pulls, a multiple of training.local_steps; unset: as many as these"
    )
    pull_at_start: bool = Field(
        True, description="pull before the first step too; false: first after pull_steps steps, as in the paper"
    )
    aggregation_steps: int = Field(50, ge=1, description="T_a, steps between aggregations, a multiple of training.local_steps")
    restart_optimizer: bool = Field(True, description="forget the optimiser's moments at every aggregation")
    delay: DelayConfig = Field(default_factory=DelayConfig, description="rates and widths of the modelled seconds")


def choose_reserve(config: SelectionConfig, data: ClientData, generator: torch.Generator) -> Tensor:
    """Return positions of the points that represent a client's data, (6): the members nearest to their k-means centroids."""
    num_points = min(config.num_reserve, len(data))
    if config.reserve == "random":
        return torch.randperm(len(data), generator=generator)[:num_points]
    points = as_float(data.samples[data.indices]).flatten(1)
    return nearest_members(points, kmeans(points, num_points, generator))


def look_at_candidates(
    config: SelectionConfig,
    embed: Embed,
    embed_pair: EmbedPair,
    networks: Payload,
    reserves: Mapping[int, Tensor],
    data: ClientData,
    ctx: Context,
) -> dict[str, Tensor]:
    """The ``positions`` of the candidates (7), and for each neighbour ``clusters``, ``macro`` (8) and ``losses`` (10).

    The candidates are embedded once, not once per neighbour. They are the device's own points: (7) draws from D_j^t, which
    holds received points too, but then a point would travel on to clients that its owner has no link to.

    Args:
        config: how many candidates and clusters.
        embed: gives embeddings.
        embed_pair: gives those of anchors and positives.
        networks: the global networks.
        reserves: by neighbour, its reserve points.
        data: the device's own points.
        ctx: gives the randomness.
    """
    positions = torch.randperm(len(data), generator=ctx.rng("candidates"))[: config.num_candidates]
    table = {"positions": positions}
    candidates = embed(networks, data.samples[data.indices[positions]])
    for neighbor, reserve in reserves.items():
        rng = ctx.rng(f"clusters for {neighbor}")
        compared = compare(candidates, *embed_pair(networks, reserve), config.num_clusters, config.margin, rng)
        table |= {address(neighbor, name): tensor for name, tensor in compared.items()}
    return table


def receivers_losses(
    config: SelectionConfig, embed: Embed, embed_pair: EmbedPair, networks: Payload, reserve: Tensor, samples: Tensor
) -> Tensor:
    """Return the losses (10) of candidates through the receiver's own networks, shape (num_candidates,)."""
    return mean_losses(*embed_pair(networks, reserve), embed(networks, samples), config.margin)


def draw_for(
    config: SelectionConfig, table: Tensors, neighbor: int, losses: Tensor | None, progress: float, generator: torch.Generator
) -> Tensor:
    """Return positions of the points for a neighbour, drawn by (12); uniformly where its reserve is not known.

    Args:
        config: how many, and lambda.
        table: what ``look_at_candidates`` gave.
        neighbor: the receiver.
        losses: in place of those in the table.
        progress: t / T, from 0 to 1.
        generator: draws them.
    """
    chances = torch.zeros(len(table["positions"]), dtype=torch.float64)
    if address(neighbor, "macro") in table:
        first, last = config.importance_temperature
        losses = table[address(neighbor, "losses")] if losses is None else losses
        clusters, macro = table[address(neighbor, "clusters")], table[address(neighbor, "macro")]
        chances = log_importance(losses, clusters, macro, first + (last - first) * progress)
    return table["positions"][draw_without_replacement(chances, config.points_per_pull, generator)]
