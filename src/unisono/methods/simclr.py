"""Federated SimCLR: NT-Xent on every client, FedAvg on the server.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (ICML 2020), as the baseline of
Lubana et al., "Orchestra" (ICML 2022): an MLP projector, both views as anchors, temperature 0.1.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from unisono.core.config import Section
from unisono.core.method import Setting, register
from unisono.losses.contrastive import nt_xent
from unisono.methods.local_training import Batch, LocalTraining, Terms
from unisono.models.heads import mlp


class SimCLRConfig(Section):
    """Options of SimCLR."""

    temperature: float = Field(0.1, gt=0, description="divides the cosine similarities")
    projection_dim: int = Field(512, ge=1, description="width of the projector and of its output")


@register("simclr")
class SimCLR(LocalTraining):
    """Two views of a sample attract, all other samples of the client's batch repel."""

    Config = SimCLRConfig
    network_names = ("encoder", "projector")
    min_batch = 2

    def __init__(self, config: SimCLRConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.config = config

    def build(self) -> nn.ModuleDict:
        encoder = self.backbone()
        width = self.config.projection_dim
        projector = mlp([encoder.feature_dim, width, width], norm=self.model.norm)
        return nn.ModuleDict({"encoder": encoder, "projector": projector})

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Terms:
        views = torch.cat(self.views.pair(batch.x, generator))
        z_a, z_b = nets["projector"](nets["encoder"](views)).chunk(2)
        return {"loss": nt_xent(z_a, z_b, self.config.temperature)}
