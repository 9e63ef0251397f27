"""The template of semi-supervised methods: an encoder, and a linear head that the received model predicts labels with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unisono.core.client_data import ClientData
from unisono.core.payload import Payload
from unisono.methods.before_training import embed_before_training
from unisono.methods.local_training import Batch
from unisono.methods.user_verification import U, UserVerified


class LabelHead(UserVerified[U]):
    """Template: clients hand over the labels they have, and pseudo-labels come from the server's model."""

    needs_labels = True

    @property
    def shared_networks(self) -> tuple[str, ...]:
        return ("encoder", *self.head_names)

    def build_networks(self) -> nn.ModuleDict:
        return self.with_heads(nn.ModuleDict({"encoder": self.backbone()}))

    def received_logits(self, nets: nn.ModuleDict, received: Payload, data: ClientData) -> Tensor:
        """Return the received model's class scores of all samples, shape (len(data), num_classes); (0,) without samples."""
        return embed_before_training(
            nets, self.shared_networks, received, data, lambda x: nets["label_head"](nets["encoder"](x))
        )

    def view_logits(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features of two views, shape (2 x batch, feature_dim), and the class scores of each view."""
        h = self.pass_views(nets["encoder"], torch.cat(self.views.pair(batch.x, generator)))
        logits_1, logits_2 = nets["label_head"](h).chunk(2)
        return h, logits_1, logits_2
