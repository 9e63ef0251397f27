"""The local training loop, and the template of methods that are a loss plus a few networks.

A method of this kind writes ``build_networks`` and ``loss`` (its formula). The template loads what the server sent,
trains on the client's samples, and shares the networks named in ``shares``; the server keeps their means.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import C, Method
from unisono.core.payload import Aggregate, Payload, Reduce, Share, Update
from unisono.data.views import ViewsConfig, make_views
from unisono.models.backbones import Backbone, ModelConfig, make_backbone
from unisono.models.micro_batch import can_take_parts, in_parts
from unisono.models.nets import build_seeded, get_state, load_state
from unisono.models.pretrained import load_pretrained

LossTerms = Mapping[str, Tensor]
"""Named scalars of a loss; the one called ``loss`` is minimised, the others are logged."""
Loss = Callable[["Batch", torch.Generator], LossTerms]
"""The terms of a batch; all randomness comes from the generator."""


class TrainingConfig(Section):
    """How a client trains: the table ``[training]``."""

    local_epochs: int = Field(1, ge=1, description="passes over the client's samples per round")
    local_steps: int | None = Field(None, ge=1, description="number of batches per round; replaces local_epochs")
    batch_size: int = Field(16, ge=1, description="samples per step")
    micro_batch: int | None = Field(
        None, ge=1, description="views that pass through a network at a time: less memory, the same gradient, a third more time"
    )
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="the client's optimiser, made anew every round")
    learning_rate: float = Field(0.003, gt=0, description="step size in the first round")
    schedule: Literal["constant", "cosine"] = Field("constant", description="learning rate over rounds")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd")
    weight_decay: float = Field(1e-4, ge=0, description="L2 penalty")
    proximal_weight: float = Field(
        0.0, ge=0, description="FedProx: half this times the squared distance to the received weights"
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="number format of the forward pass")
    channels_last: bool = Field(False, description="memory format of images and convolutions")
    compile: bool = Field(False, description="torch.compile the networks")
    reference_clients: int | None = Field(
        None, ge=1, description="local_epochs is meant for this many clients, and grows linearly with their number"
    )
    reference_participation: float | None = Field(
        None, gt=0, le=1, description="learning_rate is meant for this share of clients per round; grows with its square root"
    )

    @model_validator(mode="after")
    def _steps_do_not_scale(self) -> TrainingConfig:
        if self.reference_clients is not None and self.local_steps is not None:
            raise ValueError("reference_clients scales local_epochs, which local_steps replaces: remove one of the two")
        return self

    def scaled(self, num_clients: int | None, participation: float) -> TrainingConfig:
        """The table as the clients of this federation follow it, by the rules of Orchestra's paper (C.4).

        "L_new = L K_new / K", to the nearest whole number from 1, for epochs L and K clients; and
        "eta_new = eta sqrt(R_new / R)" for learning rate eta and participation ratio R.

        Args:
            num_clients: size of the federation; None where it is not known yet.
            participation: share of the clients that a round asks.
        """
        changed: dict[str, float | None] = {}
        if self.reference_clients is not None:
            if num_clients is None:
                raise UserError(
                    "training.reference_clients needs a number of clients that the recipe gives, and partition.scheme = "
                    "'natural' takes it from the data: set training.local_epochs itself."
                )
            epochs = max(1, round(self.local_epochs * num_clients / self.reference_clients))
            changed |= {"local_epochs": epochs, "reference_clients": None}
        if self.reference_participation is not None:
            rate = self.learning_rate * math.sqrt(participation / self.reference_participation)
            changed |= {"learning_rate": rate, "reference_participation": None}
        return self.model_copy(update=changed) if changed else self

    def learning_rate_at(self, round: int, num_rounds: int) -> float:
        """The learning rate of a round."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * round / num_rounds))


@dataclass(frozen=True)
class Batch:
    """What a loss is given.

    Args:
        x: un-augmented samples, floats, shape (batch, *input_shape).
        positions: where they stand among the client's samples, shape (batch,).
        labels: visible labels, shape (batch,), -1 where hidden; None for methods that see none.
    """

    x: Tensor
    positions: Tensor
    labels: Tensor | None

    def __len__(self) -> int:
        return len(self.x)


def batches(data: ClientData, training: TrainingConfig, generator: torch.Generator) -> Iterator[Batch]:
    """Random batches for one round of local training: whole epochs, or ``local_steps`` batches."""
    per_epoch = -(-len(data) // training.batch_size)
    num_batches = per_epoch * training.local_epochs if training.local_steps is None else training.local_steps
    while num_batches > 0 and per_epoch > 0:
        for positions in torch.randperm(len(data), generator=generator).split(training.batch_size)[:num_batches]:
            labels = None if data.labels is None else data.label_batch(positions)
            yield Batch(data.batch(positions), positions, labels)
        num_batches -= per_epoch


def train_locally(
    parameters: list[nn.Parameter],
    loss: Loss,
    data: ClientData,
    training: TrainingConfig,
    ctx: Context,
    *,
    learning_rate: float,
    min_batch_size: int = 1,
    after_step: Callable[[], None] = lambda: None,
    optimizer: torch.optim.Optimizer | None = None,
    anchor: Sequence[Tensor] | None = None,
) -> dict[str, float]:
    """Trains in place and returns the mean of every term over the steps.

    Args:
        parameters: what is trained.
        loss: terms of a batch; draws from the generator alone.
        data: the client's samples.
        training: epochs, batch size, optimiser.
        ctx: gives the order of samples and the views.
        learning_rate: step size of this round.
        min_batch_size: smaller batches are skipped and counted in ``skipped_batches``.
        after_step: called after every step, such as for a moving average.
        optimizer: continues with what it remembers, at its own learning rate; a new one where None.
        anchor: what FedProx pulls towards, in the order of ``parameters``; their present values where None.
    """
    optimizer = make_optimizer(training, parameters, learning_rate) if optimizer is None else optimizer
    scaler = torch.amp.GradScaler(ctx.device.type, enabled=training.precision == "fp16")
    if training.proximal_weight and anchor is None:
        anchor = [parameter.detach().clone() for parameter in parameters]
    views = ctx.rng("views", ctx.device)
    sums: dict[str, Tensor] = {}
    num_steps = num_skipped = 0
    for batch in batches(data, training, ctx.rng("order")):
        if len(batch) < min_batch_size:
            num_skipped += 1
            continue
        with _autocast(training, ctx.device):
            terms = loss(batch, views)
        optimizer.zero_grad()
        scaler.scale(terms["loss"]).backward()
        if training.proximal_weight and anchor is not None:
            scaler.unscale_(optimizer)
            _pull_towards(parameters, anchor, training.proximal_weight)
        scaler.step(optimizer)
        scaler.update()
        after_step()
        num_steps += 1
        for name, term in terms.items():
            sums[name] = sums[name] + term.detach() if name in sums else term.detach()
    optimizer.zero_grad()  # gradients are as large as the networks: no room for them while the update is made
    metrics = {name: float(value) / num_steps for name, value in sums.items()}
    if num_skipped:
        metrics["skipped_batches"] = float(num_skipped)
    return metrics


class LocalTraining(Method[C]):
    """Template: received networks are trained on ``loss`` and their means become the next global networks.

    The group of every network in a payload has the network's name. The one called ``encoder`` is what users get.
    """

    def setup(self) -> None:
        self.training = self.info.section(TrainingConfig)
        self.model = self.info.section(ModelConfig)
        self.views = make_views(self.info.section(ViewsConfig), self.info.input_shape)
        self._check_micro_batch(self.model.norm != "batch")

    @property
    def shares(self) -> Mapping[str, Share]:
        return dict.fromkeys(self.shared_networks, Share(Reduce.MEAN))

    @property
    @abstractmethod
    def shared_networks(self) -> tuple[str, ...]:
        """The networks of ``build_networks`` that clients share."""

    @property
    def min_batch_size(self) -> int:
        """The smallest batch the loss is defined for; batch normalisation of vectors needs two samples."""
        return 2 if self.model.norm == "batch" else 1

    @abstractmethod
    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> LossTerms:
        """The terms of one batch, ``loss`` among them."""

    def after_step(self, nets: nn.ModuleDict, ctx: Context) -> None:
        """Called after every optimiser step."""

    def backbone(self) -> Backbone:
        """A new encoder as the table ``[model]`` describes it."""
        info = self.info
        backbone = make_backbone(self.model, info.input_shape, info.mean, info.std)
        self._check_micro_batch(can_take_parts(backbone))
        return backbone

    def init_server(self, ctx: Context) -> Payload:
        nets = build_seeded(self.build_networks, ctx.rng("weights").initial_seed())
        if self.model.pretrained is not None:
            for name in {"encoder", "target_encoder"} & set(nets):
                load_pretrained(nets[name], self.model.pretrained)
        return Payload({name: get_state(nets[name]) for name in self.shared_networks})

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        return Payload({name: server.groups[name] for name in self.shared_networks})

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        return self.train(nets, received, data, ctx, lambda batch, generator: self.loss(nets, batch, generator)), local

    def train(self, nets: nn.ModuleDict, received: Payload, data: ClientData, ctx: Context, loss: Loss) -> Update:
        """Loads what was received, trains on a loss, and shares the networks of ``shared_networks``."""
        return self.train_networks(nets, received, data, ctx, loss, self.shared_networks)

    def train_networks(
        self,
        nets: nn.ModuleDict,
        received: Payload,
        data: ClientData,
        ctx: Context,
        loss: Loss,
        shared: Sequence[str],
        frozen: Sequence[str] = (),
    ) -> Update:
        """The same for a phase that shares some networks only, or trains on top of frozen ones.

        Args:
            nets: what ``build_networks`` returned.
            received: holds the networks that are shared or frozen.
            data: the client's samples.
            ctx: gives the order of samples and the views.
            loss: terms of a batch.
            shared: networks that the update carries.
            frozen: networks that stay in eval mode and are not trained.
        """
        for name in (*shared, *frozen):
            load_state(nets[name], received.groups[name])
        for name, net in nets.items():
            net.train(name not in frozen)
        trained = [parameter for name in nets if name not in frozen for parameter in nets[name].parameters()]
        with in_parts(nets, self.training.micro_batch):
            metrics = train_locally(
                [parameter for parameter in trained if parameter.requires_grad],
                loss,
                data,
                self.training,
                ctx,
                learning_rate=self.training.learning_rate_at(ctx.round, self.info.num_rounds),
                min_batch_size=self.min_batch_size,
                after_step=lambda: self.after_step(nets, ctx),
            )
        return Update(ctx.client_id, float(len(data)), Payload({name: get_state(nets[name]) for name in shared}), metrics)

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        return server.with_groups(**aggregate.means)

    def encoder(self, server: Payload) -> nn.Module:
        encoder = self.build_networks()["encoder"]
        load_state(encoder, server.groups["encoder"])
        return encoder.eval()

    def _check_micro_batch(self, possible: bool) -> None:
        if self.training.micro_batch is not None and not possible:
            raise UserError(
                f"training.micro_batch = {self.training.micro_batch} gives the gradient of the whole batch only without "
                'BatchNorm, which mixes samples, and Dropout: set model.norm = "group" or remove training.micro_batch.'
            )


def make_optimizer(training: TrainingConfig, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
    """The optimiser that the table ``[training]`` describes, with nothing to remember yet."""
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=learning_rate, weight_decay=training.weight_decay, fused=True)
    return torch.optim.SGD(
        parameters, lr=learning_rate, momentum=training.momentum, weight_decay=training.weight_decay, fused=True
    )


def _pull_towards(parameters: list[nn.Parameter], anchor: Sequence[Tensor], weight: float) -> None:
    """Adds the gradient of ``weight / 2 * |w - anchor|^2``."""
    with torch.no_grad():
        for parameter, start in zip(parameters, anchor, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - start, alpha=weight)


def _autocast(training: TrainingConfig, device: torch.device) -> AbstractContextManager[object]:
    if training.precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16 if training.precision == "bf16" else torch.float16)
