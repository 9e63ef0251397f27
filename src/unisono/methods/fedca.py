"""FedCA: SimCLR with a dictionary of all clients' representations as negatives, and an alignment to a model of public data.

Zhang et al., "Federated Unsupervised Representation Learning" (2020). Every client sends representations of its own
samples, so the method is refused unless ``consent.allow_raw_representations`` is true. The alignment module needs public
samples: the server trains a model on them before the first round, and clients keep their representations of the public
samples near that model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from unisono.core.client_data import ClientData, as_float
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import register
from unisono.core.payload import UNIT, Aggregate, Form, Payload, Reduce, Reveals, Share, Update
from unisono.data.sources.locate import reading
from unisono.data.sources.npz import read_npz
from unisono.losses.contrastive import nt_xent
from unisono.methods.local_training import Batch, LocalTraining, LossTerms
from unisono.models.heads import mlp
from unisono.models.nets import build_seeded


class FedCAConfig(Section):
    """Options of FedCA."""

    projection_dim: int = Field(128, ge=1, description="width of the projector and of its output")
    temperature: float = Field(0.5, gt=0, description="divides the cosine similarities")
    dictionary_size: int = Field(128, ge=1, description="most representations that a client sends in a round")
    alignment_data: str | None = Field(None, description="an .npz file of public samples, array x; unset: no alignment")
    alignment_weight: float = Field(0.01, ge=0, description="weight of the squared distance to the public model's outputs")
    alignment_rounds: int = Field(10, ge=1, description="how long the public model is trained, each as a client's round")


@register("fedca")
class FedCA(LocalTraining[FedCAConfig]):
    """SimCLR with all clients' representations as negatives, and an anchor in public data."""

    Config = FedCAConfig
    min_batch_size = 2
    shared_networks = ("encoder", "projector")

    @property
    def shares(self) -> Mapping[str, Share]:
        form = {"z": Form(("points", self.config.projection_dim), self.config.dictionary_size, -UNIT, UNIT)}
        return {**super().shares, "representations": Share(Reduce.STACK, Reveals.REPRESENTATIONS, form)}

    def build_networks(self) -> nn.ModuleDict:
        encoder = self.backbone()
        width = self.config.projection_dim
        projector = mlp([encoder.feature_dim, width, width], norm=self.model.norm)
        return nn.ModuleDict({"encoder": encoder, "projector": projector})

    def init_server(self, ctx: Context) -> Payload:
        server = super().init_server(ctx)
        if self.config.alignment_data is None:
            return server
        public = self._public_data(self.config.alignment_data)
        nets = build_seeded(self.build_networks, 0)
        trained = server
        for round in range(self.config.alignment_rounds):
            place = replace(ctx, round=round, phase="alignment")
            trained = self.train(
                nets, trained, Payload(), public, place, lambda batch, rng: self.loss(nets, batch, rng)
            ).payload
        targets = self._represent(nets, public, torch.arange(len(public)))
        return server.with_groups(alignment={"samples": public.samples, "targets": targets})

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        names = (*self.shared_networks, "dictionary", "alignment")
        return Payload({name: server.groups[name] for name in names if name in server.groups})

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        negatives = received.groups["dictionary"]["z"].to(ctx.device) if "dictionary" in received.groups else None
        public = {name: tensor.to(ctx.device) for name, tensor in received.groups.get("alignment", {}).items()}
        update = self.train(
            nets, received, local, data, ctx, lambda batch, generator: self.loss(nets, batch, generator, negatives, public)
        )
        chosen = torch.randperm(len(data), generator=ctx.rng("dictionary"))[: self.config.dictionary_size]
        sent = {"z": self._represent(nets, data, chosen)}
        return replace(update, payload=update.payload.with_groups(representations=sent)), local

    def loss(
        self,
        nets: nn.ModuleDict,
        batch: Batch,
        generator: torch.Generator,
        negatives: Tensor | None = None,
        public: Mapping[str, Tensor] | None = None,
    ) -> LossTerms:
        views = torch.cat(self.views.pair(batch.x, generator))
        z_a, z_b = self.pass_views(nets["projector"], self.pass_views(nets["encoder"], views)).chunk(2)
        contrast = nt_xent(z_a, z_b, self.config.temperature, negatives)
        if not public:
            return {"loss": contrast}
        rows = torch.randint(len(public["samples"]), (len(batch),), generator=generator, device=batch.x.device)
        z = F.normalize(nets["projector"](nets["encoder"](as_float(public["samples"][rows]))), dim=1)
        distance = (z - public["targets"][rows]).square().sum(dim=1).mean()
        return {"loss": contrast + self.config.alignment_weight * distance, "contrast": contrast, "alignment": distance}

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        server = super().server_step(server, aggregate, ctx)
        received = [tensors["z"] for _, tensors in aggregate.stacks.get("representations", [])]
        return server.with_groups(dictionary={"z": torch.cat(received)}) if received else server

    def _represent(self, nets: nn.ModuleDict, data: ClientData, positions: Tensor) -> Tensor:
        """Return unit-norm projections of these samples in eval mode, on the CPU, shape (len(positions), projection_dim)."""
        nets.eval()
        with torch.no_grad():
            parts = [nets["projector"](nets["encoder"](data.batch(part))) for part in positions.split(self.training.batch_size)]
        return F.normalize(torch.cat(parts).float(), dim=1).cpu()

    def _public_data(self, path: str) -> ClientData:
        file = Path(path).expanduser()
        with reading(file), file.open("rb") as content:
            samples = read_npz(content, file, file.stem).samples
        if tuple(samples.shape[1:]) != self.info.input_shape:
            raise UserError(
                f"method.alignment_data = {path!r} holds samples of shape {tuple(samples.shape[1:])}, "
                f"but those of the clients have shape {self.info.input_shape}."
            )
        return ClientData(samples, torch.arange(len(samples)))
