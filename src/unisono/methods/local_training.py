"""The template of methods that are a loss plus a few networks.

A method of this kind writes ``build_networks`` and ``loss``, and gives every network a role. The template loads the networks,
trains them on the client's samples, and shares those that are declared; the server keeps their means.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.errors import MethodError, UserError
from unisono.core.method import C, Method
from unisono.core.payload import Aggregate, Payload, Reduce, Scalar, Share, Update
from unisono.data.views import Views, ViewsConfig, make_views
from unisono.methods.training_loop import Batch, Loss, LossTerms, TrainingConfig, make_optimizer, train_locally
from unisono.models.backbones import Backbone, ModelConfig, is_part, make_backbone
from unisono.models.half_precision import in_precision
from unisono.models.micro_batch import can_take_parts, in_parts
from unisono.models.nets import build_seeded, get_state, lent_state, load_state, set_mode, update_ema
from unisono.models.norms import batch_norm_learns
from unisono.models.optimizer_state import get_optimizer_state, load_optimizer_state
from unisono.models.pretrained import TRUNK, load_pretrained

ENCODERS = ("encoder", "target_encoder")
"""Networks that start from ``model.pretrained`` and have frozen stages."""

__all__ = ["Batch", "LocalTraining", "Loss", "LossTerms", "NetworkRoles", "Start"]


@dataclass(frozen=True)
class NetworkRoles:
    """Role of each network of a method in a phase; a network may be shared and have another role beside it.

    Args:
        shared: received, trained, and averaged by the server.
        personal: trained, and kept in the client's local state.
        targets: target network to the online network that it follows by a moving average. It restarts from the received
            online network, unless it is shared or personal itself. It is not trained.
        frozen: received, and used in eval mode without gradients.
        managed: trained; the method itself loads them and sends what it likes.
    """

    shared: tuple[str, ...] = ()
    personal: tuple[str, ...] = ()
    targets: Mapping[str, str] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    managed: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All networks that have a role, each once."""
        return tuple(dict.fromkeys((*self.shared, *self.personal, *self.targets, *self.frozen, *self.managed)))

    @property
    def trained(self) -> tuple[str, ...]:
        """The networks that the optimizer changes."""
        return tuple(name for name in self.names if name not in self.targets and name not in self.frozen)


@dataclass(frozen=True)
class Start:
    """The networks that a client's training starts from.

    Args:
        networks: in place of those that were received.
        metrics: numbers for the client's update.
        scalars: kept in the client's local state.
    """

    networks: Payload
    metrics: Mapping[str, float] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)


class LocalTraining(Method[C]):
    """Template: received networks are trained on ``loss`` and their means become the next global networks.

    The group of every network in a payload has the network's name. The one called ``encoder`` is what users get.
    """

    training_phases: tuple[str, ...] = ("train",)
    """The phases that train; every network has a role in one of them."""
    moves_targets_first: bool = False
    """True if target networks move before the loss of a step, false if after the optimiser's step."""

    instance_pass: bool = False
    """True if ``loss`` looks at ``batch.instance_only``: the unlabelled part of a data set has a pass of its own per epoch."""

    views_at_input_size: bool = True
    """True if views are cropped from the stored size to ``model.input_size``; False for losses that join plain samples with
    views in one batch, whose views have the stored size, and the encoder enlarges both."""

    projector_network: str = "projector"
    """The shared network from the encoder's features to the space of the loss, where there is one of this name."""

    def setup(self) -> None:
        self.check_micro_batch(self.model.norm != "batch")
        if self.training.keep_optimizer and type(self).client_step is not LocalTraining.client_step:
            raise UserError(
                f"training.keep_optimizer = true is not possible with {self.name}, whose clients take steps of their own: "
                "remove it."
            )
        _ = self.views  # an impossible table is better noticed now

    @cached_property
    def training(self) -> TrainingConfig:
        """The table ``[training]``."""
        return self.info.section(TrainingConfig)

    @cached_property
    def model(self) -> ModelConfig:
        """The table ``[model]``."""
        return self.info.section(ModelConfig)

    @cached_property
    def views(self) -> Views:
        """Augmentations as the table ``[views]`` describes them."""
        edge = self.model.input_size if self.views_at_input_size else None
        return make_views(self.info.section(ViewsConfig), self.info.input_shape, edge)

    # --- what a method declares

    @property
    @abstractmethod
    def shared_networks(self) -> tuple[str, ...]:
        """The networks that are received, trained and averaged."""

    @property
    def personal_networks(self) -> tuple[str, ...]:
        """The networks that a client keeps in its local state."""
        return ()

    @property
    def target_networks(self) -> Mapping[str, str]:
        """Target networks by name, and the online network that each follows with ``ema_decay``."""
        return {}

    @property
    def frozen_networks(self) -> tuple[str, ...]:
        """The networks that are received and used in eval mode without gradients."""
        return ()

    def network_roles(self, phase: str) -> NetworkRoles:
        """Return what happens to each network in a phase; the four declarations unless phases differ."""
        return NetworkRoles(self.shared_networks, self.personal_networks, self.target_networks, self.frozen_networks)

    def ema_decay(self, phase: str) -> float:
        """Return the momentum of the target networks, the option ``ema`` of the method's table."""
        return float(getattr(self.config, "ema"))  # noqa: B009 - not every table has one, see check_networks

    @property
    def min_batch_size(self) -> int:
        """The smallest batch the loss is defined for; batch normalisation of vectors needs two samples."""
        return 2 if self.model.norm == "batch" else 1

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Tensor | LossTerms:
        """Return the loss of a batch: a scalar, or named scalars with ``loss`` among them, which are logged.

        A method whose loss needs more than this writes ``client_step``, which gives ``train`` a loss of its own.
        """
        raise MethodError(f"{self.name} must write loss(self, nets, batch, generator), or a client_step of its own.")

    def start_from(self, received: Payload, local: Payload) -> Start:
        """Return the networks that a client starts from, such as a mixture of the received and its own."""
        return Start(received)

    def remember(self, start: Start, update: Update) -> Mapping[str, Scalar]:
        """Return the numbers that a client with a local state keeps for its next round; those of ``start`` unless written."""
        return start.scalars

    # --- what the template does with it

    @property
    def shares(self) -> Mapping[str, Share]:
        return dict.fromkeys(self.shared_networks, Share(Reduce.MEAN))

    def backbone(self) -> Backbone:
        """Return a new encoder as the table ``[model]`` describes it."""
        info = self.info
        backbone = make_backbone(self.model, info.input_shape, info.mean, info.std)
        self.check_micro_batch(can_take_parts(backbone))
        return backbone

    def pass_views(self, net: nn.Module, views: Tensor, number: int = 2) -> Tensor:
        """Return the output of a network for several views of a batch, in one pass or, if BatchNorm learns in it, one for each.

        Args:
            net: gives a row for every row.
            views: all rows of the first view, then all of the second, and so on.
            number: of views.
        """
        if not (self.training.separate_views and batch_norm_learns(net)):
            return net(views)  # type: ignore[no-any-return]
        return torch.cat([net(view) for view in views.chunk(number)])

    def check_networks(self, nets: nn.ModuleDict) -> None:
        roles = [self.network_roles(phase) for phase in self.training_phases]
        declared = {name for each in roles for name in each.names}
        for name in nets:
            if name not in declared:
                raise MethodError(
                    f"{self.name}: the network {name!r} of build_networks has no role, so it would start from what another "
                    "client left: name it in shared_networks, personal_networks, target_networks or frozen_networks."
                )
        for name in (*declared, *(online for each in roles for online in each.targets.values())):
            if name not in nets:
                raise MethodError(
                    f"{self.name}: the network {name!r} has a role, and build_networks creates only {', '.join(nets)}."
                )
        has_decay = hasattr(self.config, "ema") or type(self).ema_decay is not LocalTraining.ema_decay
        if any(each.targets for each in roles) and not has_decay:
            raise MethodError(
                f"{self.name}: target_networks follow with the momentum of the option ema, which Config lacks: add it, or "
                "write ema_decay(self, phase)."
            )

    def init_server(self, ctx: Context) -> Payload:
        nets = build_seeded(self.build_networks, ctx.rng("weights").initial_seed())
        if self.model.pretrained is not None:
            for name in set(ENCODERS) & set(nets):
                load_pretrained(nets[name], self.model.pretrained)
        return Payload({name: get_state(nets[name]) for name in self._held})

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        return Payload({name: server.groups[name] for name in self._held})

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        start = self.start_from(received, local)
        memory = dict(local.groups.get("optimizer", {})) if self.training.keep_optimizer else None
        update = self.train(nets, start.networks, local, data, ctx, lambda batch, rng: self.loss(nets, batch, rng), memory)
        update = replace(update, metrics={**update.metrics, **start.metrics})
        kept = {name: get_state(nets[name]) for name in self.network_roles(ctx.phase).personal}
        if memory is not None:
            kept["optimizer"] = memory
        return update, Payload(kept, self.remember(start, update)) if kept else local

    def load_networks(self, nets: nn.ModuleDict, received: Payload, local: Payload, ctx: Context) -> None:
        """Load every network that has a role in this phase, but those that the method manages."""
        roles = self.network_roles(ctx.phase)
        received_names = {*roles.shared, *roles.frozen}
        for name in roles.names:
            if name in received_names:
                load_state(nets[name], received.groups[name])
            elif name in roles.personal and name in local.groups:
                load_state(nets[name], local.groups[name])
            elif name in roles.targets:
                load_state(nets[name], received.groups[roles.targets[name]])
            elif name in roles.personal:  # at first, all clients have the same weights
                seed = Context(ctx.seed).rng("weights").initial_seed()
                load_state(nets[name], get_state(build_seeded(self.build_networks, seed)[name]))

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
        """Load all networks, train them on a loss, and return the shared ones.

        Args:
            nets: what ``build_networks`` returned.
            received: holds the networks that are shared or frozen.
            local: holds the client's personal networks.
            data: the client's samples.
            ctx: gives the phase, the order of samples and the views.
            loss: the loss of a batch.
            memory: what the optimiser remembers from the client's last round; replaced by what it remembers after this one.
        """
        roles = self.network_roles(ctx.phase)
        self.load_networks(nets, received, local, ctx)
        for name, net in nets.items():
            set_mode(net, name not in roles.frozen)
        learning_rate = self.training.learning_rate_at(ctx.round, self.info.num_rounds)
        trained = {
            f"{name}.{path}": parameter
            for name in nets
            if name in roles.trained
            for path, parameter in nets[name].named_parameters()
            if parameter.requires_grad
        }
        optimizer = make_optimizer(self.training, list(trained.values()), learning_rate)
        load_optimizer_state(optimizer, trained, memory or {})
        moves = (lambda: self.update_targets(nets, ctx.phase) if roles.targets else None), (lambda: None)
        before_step, after_step = moves if self.moves_targets_first else reversed(moves)
        with (
            in_precision(nets, self.training.precision),
            in_parts(nets, self.training.micro_batch),
            _without_gradients(nets, roles.frozen),
        ):
            metrics = train_locally(
                list(trained.values()),
                loss,
                data,
                self.training,
                ctx,
                learning_rate=learning_rate,
                min_batch_size=self.min_batch_size,
                before_step=before_step,
                after_step=after_step,
                optimizer=optimizer,
                source=f"{self.name}.loss",
                instance_pass=self.instance_pass,
                keeps_moments=memory is not None,
            )
        if memory is not None:
            memory |= get_optimizer_state(optimizer, trained)
        del optimizer  # its moments make room for copies
        # A method with steps of its own may change the networks after this training.
        read = lent_state if type(self).client_step is LocalTraining.client_step else get_state
        return Update(ctx.client_id, float(len(data)), Payload({name: read(nets[name]) for name in roles.shared}), metrics)

    def update_targets(self, nets: nn.ModuleDict, phase: str) -> None:
        """Move the target networks of a phase towards their online networks; called in every step."""
        for target, online in self.network_roles(phase).targets.items():
            update_ema(nets[target], nets[online], self.ema_decay(phase))

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        return server.with_groups(**{name: self._with_frozen(name, server, mean) for name, mean in aggregate.means.items()})

    def _with_frozen(self, group: str, server: Payload, mean: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return a mean with the server's own tensors of frozen stages, which rounding and noise would move."""
        if not self.model.frozen_stages or group not in ENCODERS:
            return mean
        held = server.groups[group]
        return {name: held[name] if is_part(name, self._frozen_parts) else tensor for name, tensor in mean.items()}

    @cached_property
    def _frozen_parts(self) -> tuple[str, ...]:
        return tuple(f"{TRUNK}{name}" for name in build_seeded(self.backbone, 0).frozen)

    def encoder(self, server: Payload) -> nn.Module:
        encoder = self.build_networks()["encoder"]
        load_state(encoder, server.groups["encoder"])
        return encoder.eval()

    def projector(self, server: Payload) -> nn.Module | None:
        name = self.projector_network
        if name not in self.shared_networks or name not in server.groups:
            return None
        projector = self.build_networks()[name]
        load_state(projector, server.groups[name])
        return projector.eval()

    def check_micro_batch(self, possible: bool) -> None:
        """Raise a UserError if the config asks for micro-batches that would change the gradient."""
        if self.training.micro_batch is not None and not possible:
            raise UserError(
                f"training.micro_batch = {self.training.micro_batch} gives the gradient of the whole batch only without "
                'BatchNorm, which mixes samples, and Dropout: set model.norm = "group" or remove training.micro_batch.'
            )

    @property
    def _held(self) -> tuple[str, ...]:
        """The networks that the server holds."""
        return (*self.shared_networks, *(name for name in self.frozen_networks if name not in self.shared_networks))


@contextmanager
def _without_gradients(nets: nn.ModuleDict, names: tuple[str, ...]) -> Iterator[None]:
    """Turn the gradients of some networks off for a while."""
    changed = [parameter for name in names for parameter in nets[name].parameters() if parameter.requires_grad]
    for parameter in changed:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in changed:
            parameter.requires_grad_(True)
