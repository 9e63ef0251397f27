"""Templates of methods that compare two views of a batch: their own loss, user verification, and labels where there are some.

Louizos, Reisser, Korzhenkov, "A Mutual Information Perspective on Federated Contrastive Learning" (ICLR 2024), Algorithm 2. The
paper's Eq. 13 verifies users on labelled samples too, its Algorithm 2 on unlabelled ones only: ``uv_labelled`` chooses.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from typing_extensions import TypeVar

from unisono.losses.labelled import label_cross_entropy, within_classes
from unisono.losses.mutual_information import global_bound, info_nce_bound
from unisono.methods.local_training import Batch, LossTerms
from unisono.methods.user_verification import UserVerificationConfig, UserVerified
from unisono.models.heads import mlp

Rows = Tensor | slice
"""Samples of a batch: a mask of shape (batch,), or all of them."""


class TwoViewConfig(UserVerificationConfig):
    """Options of methods that compare two views."""

    label_weight: float = Field(
        0.0,
        ge=0,
        description="weight of the labelled part: own loss within classes, cross-entropy; 1 in the paper, 0 sees no label",
    )
    uv_labelled: bool = Field(False, description="verify users on labelled samples too, as in Eq. 13")


class ProjectedViewConfig(TwoViewConfig):
    """Options of methods that compare projections of two views."""

    projection_dim: int = Field(512, ge=1, description="width of the projector's output")
    hidden_dim: int | None = Field(None, ge=1, description="hidden width of the projector; default projection_dim")
    projector_norm: bool = Field(True, description="normalise the projector's hidden layer, as model.norm says")
    last_norm: bool = Field(False, description="normalise the projector's output too, without scale and shift")

    @model_validator(mode="after")
    def _last_norm_has_a_kind(self) -> ProjectedViewConfig:
        if self.last_norm and not self.projector_norm:
            raise ValueError("last_norm = true needs projector_norm = true: remove one of the two")
        return self


V = TypeVar("V", bound=TwoViewConfig, default=Any)
P = TypeVar("P", bound=ProjectedViewConfig, default=Any)


class TwoViews(UserVerified[V]):
    """Template: a method calls ``total_loss`` with its own loss among some samples of a batch."""

    def setup(self) -> None:
        super().setup()
        self.needs_labels = self.config.label_weight > 0

    def total_loss(
        self,
        nets: nn.ModuleDict,
        features: Tensor,
        labels: Tensor | None,
        own_loss: Callable[[Rows], Tensor],
        scores: Callable[[Rows], Tensor] | None = None,
    ) -> LossTerms:
        """Return the terms of Algorithm 2, ``loss`` among them.

        Args:
            nets: what ``with_heads`` returned.
            features: of the first and then of the second views, shape (2 x batch, feature_dim).
            labels: shape (batch,), -1 where hidden; None where the method sees none.
            own_loss: the method's loss among some samples of the batch.
            scores: the critic of some samples, first views in rows and second views in columns, to measure the bound of Eq. 6.
        """
        h_1, h_2 = features.chunk(2)
        known = labels >= 0 if self.needs_labels and labels is not None else None
        every_sample = slice(None)
        unlabelled = every_sample if known is None else ~known
        losses: dict[str, Tensor] = {}
        if len(h_1[unlabelled]) >= self.min_batch_size:
            losses["unsupervised_loss"] = own_loss(unlabelled)
        verified = every_sample if self.config.uv_labelled else unlabelled
        verification = self.verify(nets, h_1[verified], h_2[verified])
        if verification:
            losses["uv_loss"] = verification.pop("uv_loss")
        if labels is not None and known is not None and bool(known.any()):
            logits_1, logits_2 = nets["label_head"](features).chunk(2)
            losses["class_loss"] = within_classes(own_loss, labels, self.min_batch_size)
            losses["label_loss"] = label_cross_entropy(logits_1, logits_2, labels)
        weights = {
            "uv_loss": self.config.uv_weight,
            "class_loss": self.config.label_weight,
            "label_loss": self.config.label_weight,
        }
        total = torch.stack([weights.get(name, 1.0) * loss for name, loss in losses.items()]).sum()
        information = dict(verification)
        if scores is not None and len(h_1[unlabelled]) >= 2:
            with torch.no_grad():
                information |= _information(verification, scores(unlabelled), self.info.num_clients)
        return {"loss": total, **(losses if len(losses) > 1 else {}), **information}


class ProjectedViews(TwoViews[P]):
    """Template: a method writes ``contrast``, its loss of two views' projections."""

    min_batch_size = 2

    @property
    def shared_networks(self) -> tuple[str, ...]:
        return ("encoder", "projector", *self.head_names)

    def build_networks(self) -> nn.ModuleDict:
        encoder, config = self.backbone(), self.config
        dims = [encoder.feature_dim, config.hidden_dim or config.projection_dim, config.projection_dim]
        projector = mlp(dims, norm=self.model.norm if config.projector_norm else None, last_norm=config.last_norm)
        return self.with_heads(nn.ModuleDict({"encoder": encoder, "projector": projector}))

    @abstractmethod
    def contrast(self, z_1: Tensor, z_2: Tensor) -> Tensor:
        """Return the loss of what ``compared`` makes of first and second views, shape (batch, dim) each; a scalar."""

    def compared(self, nets: nn.ModuleDict, projections: Tensor) -> Tensor:
        """Return what ``contrast`` compares, a row for every projection: the projections themselves."""
        return projections

    @property
    def has_critic(self) -> bool:
        """True if ``critic`` bounds mutual information, which is then logged."""
        return False

    def critic(self, z_1: Tensor, z_2: Tensor) -> Tensor:
        """Return the scores of all pairs of first and second views, shape (batch, batch)."""
        raise NotImplementedError(f"{self.name} has no critic")

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        h = self.pass_views(nets["encoder"], torch.cat(self.views.pair(batch.x, generator)))
        z_1, z_2 = self.compared(nets, self.pass_views(nets["projector"], h)).chunk(2)
        scores = (lambda rows: self.critic(z_1[rows], z_2[rows])) if self.has_critic else None
        return self.total_loss(nets, h, batch.labels, lambda rows: self.contrast(z_1[rows], z_2[rows]), scores)


def _information(verification: LossTerms, scores: Tensor, num_clients: int) -> dict[str, Tensor]:
    """Return the local term of Eq. 6, and the whole bound where users are verified."""
    local = info_nce_bound(scores)
    if not verification:
        return {"mi_local": local}
    bound = global_bound(local, verification["mi_client_1"], verification["mi_client_2"], num_clients)
    return {"mi_local": local, "mi_bound": bound}
