"""A small method that keeps the contract, and one that breaks it for every check."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field
from torch import nn

from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.payload import Aggregate, Payload, Reduce, Share, Update
from unisono.methods.local_training import Batch, LocalTraining


class SoundConfig(Section):
    """Options of the small method."""

    scale: float = Field(1.0, gt=0, description="factor of the outputs")


class Sound(LocalTraining[SoundConfig]):
    """Outputs of two views are alike, and not zero."""

    Config = SoundConfig
    shared_networks = ("encoder",)

    def build_networks(self) -> nn.ModuleDict:
        return nn.ModuleDict({"encoder": nn.Sequential(nn.Flatten(), nn.Linear(64, 4))})

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Any:
        first, second = nets["encoder"](torch.cat(self.views.pair(batch.x, generator))).chunk(2)
        return self.config.scale * (first - second).square().mean() + (first.square().mean() - 1).square()


class Summary(Sound):
    pass


class ConfigKept(Sound):
    """Changes its config."""

    def setup(self) -> None:
        super().setup()
        self.config = SoundConfig(scale=2.0)


class Defaults(Sound):
    """Misspells a table."""

    defaults = {"veiws": {"preset": "byol"}}


class Pickles(Sound):
    """Holds something that cannot be sent to a process."""

    def setup(self) -> None:
        super().setup()
        self.factor = lambda: 1.0


class NetworkRoles(Sound):
    """Trains a network without saying what becomes of it: it starts from what the previous client left."""

    def build_networks(self) -> nn.ModuleDict:
        return nn.ModuleDict({**super().build_networks(), "head": nn.Linear(4, 4)})

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Any:
        return nets["head"](nets["encoder"](batch.x)).square().mean()


class ClientIsolation(NetworkRoles):
    """The same, and keeps the framework from noticing it before the run."""

    def check_networks(self, nets: nn.ModuleDict) -> None:
        return


class Loss(Sound):
    """Returns a tuple."""

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Any:
        return super().loss(nets, batch, generator), 0.0


class TrainingChangesTheServer(Sound):
    """Ignores its clients."""

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        return server


class Shares(Sound):
    """Declares more than it sends."""

    @property
    def shares(self) -> Mapping[str, Share]:
        return {**super().shares, "secrets": Share(Reduce.STACK)}


class Stepping(Sound):
    """Does something around its clients' steps."""

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        return self.changed(*super().client_step(nets, received, local, data, ctx), received)

    def changed(self, update: Update, local: Payload, received: Payload) -> tuple[Update, Payload]:
        return update, local


def moved(update: Update, by: float) -> Update:
    groups = {
        group: {name: tensor + by for name, tensor in tensors.items()} for group, tensors in update.payload.groups.items()
    }
    return replace(update, payload=Payload(groups))


class InputsAreReadOnly(Stepping):
    """Writes into what it received."""

    def changed(self, update: Update, local: Payload, received: Payload) -> tuple[Update, Payload]:
        received.groups["encoder"]["1.bias"].add_(1)
        return update, local


class MessagesAsBytes(Stepping):
    """Answers something else every time."""

    times = 0

    def changed(self, update: Update, local: Payload, received: Payload) -> tuple[Update, Payload]:
        MessagesAsBytes.times += 1
        return moved(update, 0.01 * MessagesAsBytes.times), local


class GlobalRandomness(Stepping):
    """Draws from torch's global generator."""

    def changed(self, update: Update, local: Payload, received: Payload) -> tuple[Update, Payload]:
        torch.rand(1)
        return update, local


class Workers(Stepping):
    """Depends on the process that it runs in."""

    def changed(self, update: Update, local: Payload, received: Payload) -> tuple[Update, Payload]:
        return moved(update, os.getpid() / 1e6), local


class Seed(Sound):
    """Begins with the same weights whatever the seed, and learns nothing."""

    def init_server(self, ctx: Context) -> Payload:
        return super().init_server(Context(0))

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        return server


class FailingClient(Sound):
    """Needs all clients that it has asked."""

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        if aggregate.num_clients == 5:
            raise ZeroDivisionError("one is missing")
        return super().server_step(server, aggregate, ctx)


class SingleSamples(Sound):
    """Standardises a batch by itself."""

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Any:
        z = nets["encoder"](batch.x)
        return (z / z.std(dim=0)).square().mean() if len(batch) == 1 else z.square().mean()


class Resume(Sound):
    """Counts its rounds in itself."""

    rounds = 0

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        self.rounds += 1
        return super().server_step(server, aggregate, ctx).with_scalars(rounds=self.rounds)


class Encoder(Sound):
    """Gives an encoder in train mode."""

    def encoder(self, server: Payload) -> nn.Module:
        return super().encoder(server).train()


class Projector(Sound):
    """Has a projector for features of another width."""

    def projector(self, server: Payload) -> nn.Module:
        return nn.Linear(3, 2).eval()
