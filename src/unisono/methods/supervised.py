"""Supervised federated averaging, the upper line in comparisons.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017).
Samples whose labels are hidden are left aside.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.method import register
from unisono.core.payload import Payload, Update
from unisono.methods.local_training import Batch, LocalTraining, LossTerms


@register("supervised")
class Supervised(LocalTraining):
    """Cross-entropy with the clients' labels through one linear layer."""

    needs_labels = True
    shared_networks = ("encoder", "classifier")

    def build_networks(self) -> nn.ModuleDict:
        encoder = self.backbone()
        return nn.ModuleDict({"encoder": encoder, "classifier": nn.Linear(encoder.feature_dim, self.info.num_classes or 1)})

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        if data.labels is None:
            raise ValueError("supervised training needs labels")
        return super().client_step(nets, received, local, data.subset(data.labels >= 0), ctx)

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        if batch.labels is None:
            raise ValueError("supervised training needs labels")
        logits = nets["classifier"](nets["encoder"](self.views.first(batch.x, generator)))
        accuracy = (logits.argmax(dim=1) == batch.labels).float().mean()
        return {"loss": F.cross_entropy(logits, batch.labels), "accuracy": accuracy}
