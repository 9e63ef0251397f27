"""Federated alignment and uniformity: two views near each other, different samples spread over the sphere.

Wang & Isola, "Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere" (ICML
2020). This file is the whole method: `unisono run examples/align_uniform.py --dataset digits` runs it.
"""

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from unisono.core.config import Section
from unisono.core.method import register
from unisono.methods.local_training import Batch, LocalTraining, LossTerms
from unisono.models.heads import mlp


class AlignUniformConfig(Section):
    """Options of align-uniform."""

    uniformity_weight: float = Field(1.0, ge=0, description="weight of the uniformity beside the alignment")
    scale: float = Field(2.0, gt=0, description="t of the paper: how near two samples feel each other")
    projection_dim: int = Field(64, ge=2, description="width of the projector and of its output")


def alignment(z_a: Tensor, z_b: Tensor) -> Tensor:
    """The mean squared distance of two views of a sample; shapes (batch, dim), rows of unit length."""
    return (z_a - z_b).square().sum(dim=1).mean()


def uniformity(z: Tensor, scale: float) -> Tensor:
    """The log of the mean Gaussian potential of different samples, at most 0; z has shape (batch, dim), batch >= 2."""
    return torch.pdist(z).square().mul(-scale).exp().mean().log()


@register("align-uniform")
class AlignUniform(LocalTraining[AlignUniformConfig]):
    """Two views of a sample are near each other, different samples far from each other, on the sphere."""

    Config = AlignUniformConfig
    shared_networks = ("encoder", "projector")
    min_batch_size = 2

    def build_networks(self) -> nn.ModuleDict:
        encoder = self.backbone()
        width = self.config.projection_dim
        projector = mlp([encoder.feature_dim, width, width], norm=self.model.norm)
        return nn.ModuleDict({"encoder": encoder, "projector": projector})

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        z_a, z_b = F.normalize(nets["projector"](nets["encoder"](views)), dim=1).chunk(2)
        near = alignment(z_a, z_b)
        spread = (uniformity(z_a, self.config.scale) + uniformity(z_b, self.config.scale)) / 2
        return {"loss": near + self.config.uniformity_weight * spread, "alignment": near, "uniformity": spread}
