"""CBAFed: pseudo-labels above thresholds that are lower for classes seen less often.

Li et al., "Class Balanced Adaptive Pseudo Labeling for Federated Semi-Supervised Learning" (CVPR 2023), as the baseline of
Louizos et al., "A Mutual Information Perspective on Federated Contrastive Learning" (ICLR 2024), B.2, without its residual
weight connection. Clients say how many samples of each class they trained on; the threshold of class c in the next round is
T_c = p_c + 0.84 - std(p), at most 0.95, where p are the shares of the classes over all clients of the last round, and in the
first round those of all labels. Pseudo-labels are fixed at the start of a round; a client with no confident sample trains on
its labels alone.

CBAFed's public code (minglllli/CBAFed) has three more rules, which Louizos et al. do not name: ``rare_share``,
``supervised_rounds`` and ``scale_shares``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor, nn

from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.method import Phase, register
from unisono.core.payload import Aggregate, Form, Payload, Reduce, Reveals, Share, Update
from unisono.losses.labelled import label_cross_entropy
from unisono.methods.label_head import LabelHead
from unisono.methods.local_training import Batch, LossTerms
from unisono.methods.user_verification import UserVerificationConfig


class CBAFedConfig(UserVerificationConfig):
    """Options of CBAFed."""

    base_threshold: float = Field(0.84, ge=0, le=1, description="threshold of a class of average frequency, but for its share")
    max_threshold: float = Field(0.95, ge=0, le=1, description="no threshold is higher")
    rare_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="below its threshold a sample takes its second class if that has a smaller share; 0.03 in CBAFed's code",
    )
    supervised_rounds: int = Field(0, ge=0, description="first rounds that learn from labels alone, as CBAFed's code does")
    scale_shares: bool = Field(False, description="multiply shares by classes / 10, as CBAFed's code does")


@register("cbafed")
class CBAFed(LabelHead[CBAFedConfig]):
    """Labels where there are some, and predictions of the server's model that are confident for their class."""

    Config = CBAFedConfig
    phase_names = ("count", "train")
    single_phases = ("count",)
    defaults = {"aggregation": {"weighting": "uniform"}}

    @property
    def shares(self) -> Mapping[str, Share]:
        form = {"counts": Form((self.info.num_classes or 1,), low=0.0)}
        return {**super().shares, "class_counts": Share(Reduce.MEAN, Reveals.STATISTICS, form)}

    def phases(self, round: int, server: Payload) -> Sequence[Phase]:
        return (Phase("count", all_clients=True), Phase("train")) if round == 0 else (Phase("train"),)

    def groups_sent(self, ctx: Context) -> Collection[str]:
        return {"class_counts"} if ctx.phase == "count" else self.shares.keys()

    def init_server(self, ctx: Context) -> Payload:
        num_classes = self.info.num_classes or 1
        return super().init_server(ctx).with_groups(class_shares={"p": torch.full((num_classes,), 1 / num_classes)})

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        if ctx.phase == "count":
            return Payload()
        return super().broadcast(server, ctx).with_groups(class_shares=server.groups["class_shares"])

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        if data.labels is None:
            raise ValueError("CBAFed needs labels, hidden ones as -1")
        if ctx.phase == "count":
            return Update(ctx.client_id, float(len(data)), Payload({"class_counts": self._counts(data.labels)})), local
        labels = data.labels
        if ctx.round >= self.config.supervised_rounds:
            logits = self.received_logits(nets, received, data)
            labels = self._pseudo_labels(labels, received.groups["class_shares"]["p"], logits)
        chosen = replace(data, labels=labels).subset(labels >= 0)
        update = super().client_step(nets, received, local, chosen, ctx)[0]
        counts = self._counts(labels)
        metrics = {
            **update.metrics,
            "pseudo_labelled": float((labels >= 0).sum() - (data.labels >= 0).sum()) / max(1, len(data)),
        }
        return replace(update, payload=update.payload.with_groups(class_counts=counts), metrics=metrics), local

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        if batch.labels is None:
            raise ValueError("CBAFed needs labels")
        h, logits_1, logits_2 = self.view_logits(nets, batch, generator)
        label_loss = label_cross_entropy(logits_1, logits_2, batch.labels)
        verification = self.verify(nets, *h.chunk(2))
        if not verification:
            return {"loss": label_loss}
        return {"loss": label_loss + self.config.uv_weight * verification["uv_loss"], "label_loss": label_loss, **verification}

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        means = dict(aggregate.means)
        counts = means.pop("class_counts", {}).get("counts")
        stepped = super().server_step(server, replace(aggregate, means=means), ctx)
        if counts is None or float(counts.sum()) == 0:
            return stepped
        return stepped.with_groups(class_shares={"p": counts / counts.sum()})

    def _counts(self, labels: Tensor) -> dict[str, Tensor]:
        """Return the number of samples of each class; hidden labels do not count."""
        return {"counts": torch.bincount(labels[labels >= 0], minlength=self.info.num_classes or 1).float()}

    def _pseudo_labels(self, labels: Tensor, shares: Tensor, logits: Tensor) -> Tensor:
        """Return the labels, with pseudo-labels where they are hidden and the received model is sure enough."""
        config = self.config
        shares = shares * len(shares) / 10 if config.scale_shares else shares
        limits = thresholds(shares, config.base_threshold, config.max_threshold)
        return with_pseudo_labels(labels, logits.cpu(), limits, shares < config.rare_share)


def thresholds(shares: Tensor, base: float, highest: float) -> Tensor:
    """Return T_c = p_c + base - std(p), at most ``highest``, shape (num_classes,).

    Args:
        shares: p, the share of each class in the last round's training data, shape (num_classes,).
        base: 0.84 in the paper.
        highest: 0.95 in the paper.
    """
    spread = shares.std(correction=min(1, len(shares) - 1))
    return (shares + base - spread).clamp(max=highest)


def with_pseudo_labels(labels: Tensor, logits: Tensor, limits: Tensor, rare: Tensor | None = None) -> Tensor:
    """Return the labels; where hidden, the most likely class if its probability exceeds the class's limit, else -1.

    Args:
        labels: shape (num_samples,), -1 where hidden.
        logits: class scores, shape (num_samples, num_classes).
        limits: threshold of each class, shape (num_classes,).
        rare: mask of classes that a sample below its limit may get if they are its second most likely; None for none.
    """
    if len(labels) == 0:
        return labels
    confidence, classes = logits.softmax(dim=1).max(dim=1)
    guesses = torch.where(confidence > limits[classes], classes, -1)
    if rare is not None and bool(rare.any()) and logits.shape[1] > 1:
        second = logits.topk(2, dim=1).indices[:, 1]
        guesses = torch.where((guesses < 0) & rare[second], second, guesses)
    return torch.where(labels < 0, guesses, labels)
