"""User verification: any method that trains networks locally may also learn which client a sample comes from.

Louizos, Reisser, Korzhenkov, "A Mutual Information Perspective on Federated Contrastive Learning" (ICLR 2024). A projector
reads the features, and a softmax over one unit vector per client tells the client (Lemmas 2.1 and 2.2). Added to a local
contrastive loss, this bounds the information between two views over the whole federation (Eq. 6). A client trains and sends
its own vector alone; the others come from the server and stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import TypeVar

from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.payload import Aggregate, Payload, Reduce, Share, Update
from unisono.losses.user_verification import client_log_likelihood
from unisono.methods.local_training import Batch, LocalTraining, Loss, LossTerms, NetworkRoles
from unisono.methods.training_loop import loss_terms
from unisono.models.heads import mlp

VECTORS = "user_vectors"
"""The network, and the group of payloads, that hold the clients' vectors."""
INFORMATION = "mi_"
"""LossTerms of this prefix bound mutual information, in nats; they are logged for the networks as received, before any step."""


class UserVerificationConfig(Section):
    """Options of user verification."""

    uv_weight: float = Field(0.0, ge=0, description="weight of user verification, the paper's beta (1 there); 0 leaves it out")
    uv_scale: float = Field(3.0, gt=0, description="factor of the cosines in the softmax over clients; the paper names none")
    uv_hidden_dim: int = Field(2048, ge=1, description="hidden width of the client projector")
    uv_dim: int = Field(128, ge=1, description="width of the clients' vectors")


U = TypeVar("U", bound=UserVerificationConfig, default=Any)


class UserVectors(nn.Module):
    """The vectors of all clients as the server sent them, and this client's own as it is trained.

    Args:
        num_clients: how many there are.
        dim: their width.
    """

    vectors: Tensor

    def __init__(self, num_clients: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.zeros(num_clients, dim), persistent=False)
        self.own = nn.Parameter(torch.zeros(dim))
        self.client_id = 0

    @torch.no_grad()
    def load(self, vectors: Tensor, client_id: int) -> None:
        """Take the server's vectors; row ``client_id`` is the one to train."""
        self.vectors.copy_(vectors)
        self.own.copy_(vectors[client_id])
        self.client_id = client_id


class UserVerified(LocalTraining[U]):
    """Template: local training, with user verification where ``uv_weight`` is above 0, and a label head where it is asked for.

    A method lists ``head_names`` among its networks, passes its networks through ``with_heads``, and adds the ``uv_loss`` of
    ``verify`` to its loss. With ``uv_weight = 0`` and no label head it is plain local training.
    A method that ``needs_labels`` has a linear layer on the features that predicts them.
    """

    @property
    def verifies(self) -> bool:
        """True if users are verified."""
        return self.config.uv_weight > 0

    @property
    def head_names(self) -> tuple[str, ...]:
        """The networks that ``with_heads`` adds and clients share whole."""
        return ("label_head",) * self.needs_labels + ("client_projector",) * self.verifies

    @property
    def shares(self) -> Mapping[str, Share]:
        return {**super().shares, **({VECTORS: Share(Reduce.ROWS)} if self.verifies else {})}

    def network_roles(self, phase: str) -> NetworkRoles:
        return replace(super().network_roles(phase), managed=(VECTORS,) if self.verifies else ())

    def with_heads(self, nets: nn.ModuleDict) -> nn.ModuleDict:
        """Return the same networks, ``encoder`` among them, and the heads that the config asks for."""
        config, feature_dim = self.config, int(nets["encoder"].feature_dim)  # type: ignore[arg-type]
        if self.needs_labels:
            nets["label_head"] = nn.Linear(feature_dim, self.info.num_classes or 1)
        if self.verifies:
            nets["client_projector"] = mlp([feature_dim, config.uv_hidden_dim, config.uv_dim], norm=None)
            nets[VECTORS] = UserVectors(self.info.num_clients, config.uv_dim)
        return nets

    def init_server(self, ctx: Context) -> Payload:
        server = super().init_server(ctx)
        return server.with_groups(**{VECTORS: {"vectors": self._first_vectors(ctx)}}) if self.verifies else server

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        sent = super().broadcast(server, ctx)
        return sent.with_groups(**{VECTORS: server.groups[VECTORS]}) if self.verifies else sent

    def train(
        self,
        nets: nn.ModuleDict,
        received: Payload,
        local: Payload,
        data: ClientData,
        ctx: Context,
        loss: Loss,
        memory: dict[str, Tensor] | None = None,
    ) -> Update:
        if self.verifies:
            _vectors(nets).load(received.groups[VECTORS]["vectors"], ctx.client_id)
        watched = _FirstInformation(loss, f"{self.name}.loss")
        update = super().train(nets, received, local, data, ctx, watched, memory)
        update = replace(update, metrics={**update.metrics, **watched.information})
        if not self.verifies:
            return update
        own = {"vectors": F.normalize(_vectors(nets).own.detach(), dim=0)}
        return replace(update, payload=update.payload.with_groups(**{VECTORS: own}))

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        stepped = super().server_step(server, aggregate, ctx)
        if not self.verifies:
            return stepped
        before, after = server.groups[VECTORS]["vectors"], stepped.groups[VECTORS]["vectors"]
        # Normalising again would move vectors that nobody touched by a rounding error.
        moved = (after != before).any(dim=1, keepdim=True)
        return stepped.with_groups(**{VECTORS: {"vectors": torch.where(moved, F.normalize(after, dim=1), before)}})

    def verify(self, nets: nn.ModuleDict, h_1: Tensor, h_2: Tensor) -> dict[str, Tensor]:
        """Return ``uv_loss`` = -E log r(s | z_1) - E log r(s | z_2) and the terms of Eq. 6 in it; nothing if there is none.

        Args:
            nets: what ``with_heads`` returned.
            h_1: features of the first views, shape (batch, feature_dim).
            h_2: features of the second views, same shape.
        """
        if not self.verifies or len(h_1) == 0:
            return {}
        net, scale = _vectors(nets), self.config.uv_scale
        z = nets["client_projector"](torch.cat((h_1, h_2)))
        log_1, log_2 = client_log_likelihood(z, net.vectors, net.own, net.client_id, scale).view(2, -1).mean(dim=1)
        return {
            "uv_loss": -(log_1 + log_2),
            "mi_client_1": log_1.detach(),
            "mi_client_2": log_2.detach(),
            "mi_entropy": torch.full_like(log_1, math.log(self.info.num_clients)),
        }

    def _first_vectors(self, ctx: Context) -> Tensor:
        """Return random unit vectors; each depends on the seed and its client alone, however many clients there are."""
        dim = self.config.uv_dim
        draws = [
            torch.randn(dim, generator=ctx.at(client_id=client).rng("user vector")) for client in range(self.info.num_clients)
        ]
        return F.normalize(torch.stack(draws), dim=1)


class _FirstInformation:
    """A loss whose information terms are taken from its first batch, when all clients still have the same networks."""

    def __init__(self, loss: Loss, source: str) -> None:
        self._loss = loss
        self._source = source
        self._started = False
        self.information: dict[str, float] = {}

    def __call__(self, batch: Batch, generator: torch.Generator) -> LossTerms:
        terms = loss_terms(self._loss(batch, generator), self._source)
        if not self._started:
            self.information = {name: float(term) for name, term in terms.items() if name.startswith(INFORMATION)}
            self._started = True
        return {name: term for name, term in terms.items() if not name.startswith(INFORMATION)}


def _vectors(nets: nn.ModuleDict) -> UserVectors:
    net = nets[VECTORS]
    assert isinstance(net, UserVectors)
    return net
