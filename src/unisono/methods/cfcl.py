"""CF-CL: cooperative federated contrastive learning, with points exchanged between neighbouring clients.

Wagle et al., "Embedding Alignment for Unsupervised Federated Learning via Smart Data Exchange" (CF-CL). The exchange is that of
``exchange.py``; here is what clients learn from their points: the paper's triplet loss, or SimCLR's NT-Xent in its place. The
defaults of this file are ours; the paper's own numbers are in the recipe ``cfcl/fashion-mnist``.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from unisono.core.errors import UserError
from unisono.core.method import register
from unisono.losses.contrastive import nt_xent, triplet
from unisono.methods.exchange import DataExchange
from unisono.methods.local_training import Batch, LossTerms
from unisono.methods.negatives import ExchangeBatch, Negatives, draw_negatives
from unisono.methods.selection import ExchangeConfig
from unisono.models.heads import mlp


class CFCLConfig(ExchangeConfig):
    """Options of CF-CL."""

    loss: Literal["triplet", "simclr"] = Field("triplet", description="what clients minimise")
    negatives: Negatives = Field(
        "union",
        description="triplet: negatives from all points that a client holds, from received ones alone, or from own ones as "
        "often as they are among those of all clients",
    )
    normalize: bool = Field(True, description="triplet: embeddings of unit length; simclr always compares such")
    temperature: float = Field(0.1, gt=0, description="simclr: divides the cosine similarities")
    projection_dim: int = Field(128, ge=1, description="simclr: width of the projector and of its output")


@register("cfcl")
class CFCL(DataExchange[CFCLConfig]):
    """Clients send the points that matter most to their neighbours, and learn on these and their own."""

    views_at_input_size = False
    Config = CFCLConfig
    defaults = {
        "partition": {"scheme": "classes-per-client", "num_clients": 10},
        "model": {"backbone": "cfcl-cnn", "norm": "group"},
        "views": {"preset": "byol"},
        "training": {
            "local_steps": 10,
            "batch_size": 64,
            "optimizer": "adam",
            "learning_rate": 1e-3,
            "weight_decay": 0.0,
        },
        "federation": {"rounds": 250},
        "evaluation": {"probe_every": 25},
        "run": {"checkpoint_every": 25},
    }
    min_batch_size = 2

    def setup(self) -> None:
        super().setup()
        if self.config.loss == "simclr" and self.config.negatives != "union":
            raise UserError(
                f"method.negatives = {self.config.negatives!r} is for method.loss = 'triplet': SimCLR's negatives are the rest "
                "of the batch. Remove it, or choose the triplet loss."
            )

    @property
    def shared_networks(self) -> tuple[str, ...]:
        return ("encoder", "projector") if self.config.loss == "simclr" else ("encoder",)

    def build_networks(self) -> nn.ModuleDict:
        encoder = self.backbone()
        nets = nn.ModuleDict({"encoder": encoder})
        if self.config.loss == "simclr":
            width = self.config.projection_dim
            nets["projector"] = mlp([encoder.feature_dim, width, width], norm=self.model.norm)
        return nets

    def represent(self, nets: nn.ModuleDict, x: Tensor, num_views: int = 1) -> Tensor:
        """Return the space of the loss: the encoder's features, or for SimCLR their projections of unit length."""
        z = self.pass_views(nets["encoder"], x, num_views)
        if self.config.loss == "simclr":
            return F.normalize(self.pass_views(nets["projector"], z, num_views), dim=1)
        return F.normalize(z, dim=1) if self.config.normalize else z

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        if self.config.loss == "simclr":
            z_a, z_b = self.represent(nets, torch.cat(self.views.pair(batch.x, generator)), 2).chunk(2)
            return {"loss": nt_xent(z_a, z_b, self.config.temperature)}
        views = self.views.first(batch.x, generator)
        drawn = self._draw_negatives(batch, generator)
        others = [] if drawn is None else [drawn[0]]
        anchors, positives, *negatives = self.represent(nets, torch.cat((batch.x, views, *others)), 2 + len(others)).split(
            len(batch)
        )
        if drawn is None:
            # The batch is a uniform draw from the device's points, so another row of it is another of its points.
            shift = int(torch.randint(1, len(batch), (), generator=generator, device=batch.x.device))
            negatives = [anchors.roll(shift, dims=0)]
            self._record(batch, batch.positions.roll(shift))
        losses = triplet(anchors, positives, negatives[0], self.config.margin, reduction="none")
        terms = {"loss": losses.mean(), "active": (losses > 0).float().mean()}
        if self.config.negatives != "union":
            terms["union_negatives"] = losses.new_tensor(1.0 if drawn is None else drawn[1])
        return terms

    def _draw_negatives(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, float] | None:
        """Return negatives from outside the batch, and the share that the union had to give; None where the batch has them."""
        if not isinstance(batch, ExchangeBatch):
            return None
        num_own = len(batch.data.indices)
        # Of clients with equally many points, each has this share of all points.
        own_share = 1 / self.info.num_clients
        found = draw_negatives(self.config.negatives, batch.positions, num_own, len(batch.data.received), own_share, generator)
        if found is None:
            return None
        positions, from_union = found
        self._record(batch, positions)
        return batch.data.batch(positions), float(from_union.double().mean())

    @staticmethod
    def _record(batch: Batch, positions: Tensor) -> None:
        if isinstance(batch, ExchangeBatch):
            batch.negatives.append(positions)
