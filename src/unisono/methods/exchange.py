"""Data exchange between neighbouring clients: a template for methods whose clients train on each other's points.

Wagle et al., "Embedding Alignment for Unsupervised Federated Learning via Smart Data Exchange" (CF-CL). A round of the
federation has ``training.local_steps`` steps, which divide both the pull interval T_p and the aggregation interval T_a:

- "push", once, before the first pull: every client sends points that stand for its data, its reserve, to its neighbours.
- "offer", in rounds that begin with a pull: every client draws points for each neighbour, by importance (7)-(12), and sends
  them (``selection.py``).
- "train": steps on the device's own points and those it received. The networks go to the server in rounds that end an
  aggregation interval; until then they, and the optimiser's memory, stay in the client's local state.

A client that was away when an interval began waits for the next.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from unisono.core.addressing import address, by_sender, parse
from unisono.core.client_data import ClientData, as_float
from unisono.core.context import Context
from unisono.core.errors import MethodError, UserError
from unisono.core.method import Phase
from unisono.core.payload import Aggregate, Form, Payload, Reduce, Reveals, Share, Tensors, Update
from unisono.data.graph import ClientGraph, GraphConfig, make_graph
from unisono.data.outbox import deliver, make_ledger, pack_messages
from unisono.data.received import DataWithReceived, join_buffers, mail_form, make_buffer, usable_mail
from unisono.evaluation.delay import exchange_seconds, upload_seconds
from unisono.methods.local_training import LocalTraining
from unisono.methods.negatives import Draws
from unisono.methods.schedule import Schedule
from unisono.methods.selection import (
    Embed,
    EmbedPair,
    ExchangeConfig,
    choose_reserve,
    draw_for,
    look_at_candidates,
    receivers_losses,
)
from unisono.methods.training_loop import make_optimizer, train_locally
from unisono.models.half_precision import in_precision
from unisono.models.micro_batch import in_parts
from unisono.models.nets import get_state, load_state
from unisono.models.optimizer_state import get_optimizer_state, load_optimizer_state

KEPT = ("reserves", "buffer", "drawn")
"""Groups of a client's state that outlast an aggregation."""
EMBED_BATCH = 256
"""Samples per forward pass when points are compared: few enough that activations stay in the cache."""


E = TypeVar("E", bound=ExchangeConfig, default=Any)


class DataExchange(LocalTraining[E]):
    """Template: ``build_networks``, ``loss`` and ``represent`` make a method whose clients exchange points."""

    phase_names = ("push", "offer", "train")
    single_phases = ("push",)
    exchange_phases: ClassVar[tuple[str, ...]] = ("push", "offer")

    def setup(self) -> None:
        super().setup()
        steps, config = self.training.local_steps, self.config
        if steps is None:
            raise UserError("training.local_steps is required, the number of steps of a round, for example 10.")
        self.schedule = Schedule(
            steps,
            config.pull_steps or steps,
            config.aggregation_steps,
            self.info.num_rounds,
            config.selection != "none",
            config.pull_at_start,
        )

    def check_networks(self, nets: nn.ModuleDict) -> None:
        super().check_networks(nets)
        other = [name for name in self.network_roles("train").names if name not in self.shared_networks]
        if other:
            raise MethodError(f"{self.name}: clients that exchange data share all networks, and {other[0]!r} has another role.")

    @abstractmethod
    def represent(self, nets: nn.ModuleDict, x: Tensor) -> Tensor:
        """Return the embedding in which points are compared, shape (batch, dim).

        Args:
            nets: the networks.
            x: un-augmented or augmented samples, floats, shape (batch, *input_shape).
        """

    def client_graph(self, seed: int) -> ClientGraph:
        """Return the links between clients in a run of this seed."""
        return make_graph(self.info.section(GraphConfig), self.info.num_clients, seed)

    @property
    def shares(self) -> Mapping[str, Share]:
        shares = dict(super().shares)
        if self.config.selection != "none":
            shares["offers"] = Share(Reduce.STACK, Reveals.DATA, self._mail_forms["offers"])
        if self.config.by_importance:
            shares["reserve"] = Share(Reduce.STACK, Reveals.DATA, self._mail_forms["reserves"])
        if self.config.by_importance and self.config.importance_model == "local":
            shares["local_networks"] = Share(Reduce.STACK, Reveals.PARAMETERS, self._network_form)
        return shares

    @cached_property
    def _mail_forms(self) -> Mapping[str, Mapping[str, Form]]:
        """Forms of what neighbours send each other, by the name of the group that a client receives."""
        return {
            "offers": mail_form(self.info.input_shape, self.config.points_per_pull, with_rows=True),
            "reserves": mail_form(self.info.input_shape, self.config.num_reserve),
        }

    @cached_property
    def _network_form(self) -> Mapping[str, Form]:
        networks = _only(super().init_server(Context(0)), self.shared_networks)
        return {name: Form(tuple(tensor.shape), dtype=tensor.dtype) for name, tensor in networks.tensors()}

    def phases(self, round: int, server: Payload) -> Sequence[Phase]:
        if not self.schedule.pulls(round):
            return (Phase("train"),)
        # Whoever joins later needs its neighbours' reserves, which are sent once.
        is_first = round == self.schedule.first_pull
        push = (Phase("push", all_clients=True),) if is_first and self.config.by_importance else ()
        return (*push, Phase("offer", all_clients=is_first), Phase("train"))

    def groups_sent(self, ctx: Context) -> Collection[str]:
        sends_networks = ctx.phase == "train" and self._sends_local_networks(ctx.round)
        own = {"push": {"reserve"}, "offer": {"offers"}, "train": {"local_networks"} if sends_networks else set()}[ctx.phase]
        averaged = self.shared_networks if ctx.phase == "train" and self.schedule.ends_interval(ctx.round) else ()
        return [*averaged, *(own & self.shares.keys())]

    def max_weight(self, num_samples: int) -> float:
        pulls = self.info.num_rounds if self.config.buffer == "unlimited" else 1
        return super().max_weight(num_samples) + pulls * self.config.points_per_pull * (self.info.num_clients - 1)

    def exchange_ledger(self, server: Payload) -> Tensors:
        return server.groups.get("ledger", {})

    def drawn_rows(self, local: Payload, round: int) -> Tensors:
        return local.groups.get("drawn", {}) if local.scalars.get("trained") == round else {}

    # --- server

    def init_server(self, ctx: Context) -> Payload:
        self.client_graph(ctx.seed)  # an impossible graph is better noticed now than in the first round
        return super().init_server(ctx).with_scalars(steps=0, delay_seconds=0.0)

    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        # Outside of any phase an engine asks how much room it needs. At the end of an interval the networks that it began with
        # are sent again, for clipping and compression measure an update against them.
        is_due = self._synchronizes(ctx) or not ctx.phase or (ctx.phase == "train" and self.schedule.ends_interval(ctx.round))
        return super().broadcast(server, ctx) if is_due else Payload()

    def send_to_client(self, server: Payload, ctx: Context) -> Payload:
        neighbors = self.client_graph(ctx.seed).neighbors(ctx.client_id)
        wanted = {"train": {"offers": "offers"}, "offer": {"networks": "networks", "reserves": "reserve"}}.get(ctx.phase, {})
        sent = {group: deliver(server.groups.get(held, {}), ctx.client_id, neighbors) for group, held in wanted.items()}
        return Payload({group: tensors for group, tensors in sent.items() if tensors})

    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        if ctx.phase == "push":
            return server.with_groups(reserve=pack_messages(aggregate.stacks.get("reserve", [])))
        if ctx.phase == "offer":
            return self._posted(server, pack_messages(aggregate.stacks.get("offers", [])), ctx)
        seconds = upload_seconds(self.config.delay, _num_parameters(aggregate.means.values()))
        networks = pack_messages(aggregate.stacks.get("local_networks", []))
        ledger = ("ledger",) if self.schedule.pulls(ctx.round) else ()
        server = super().server_step(_only(server, (*self.shared_networks, *ledger)), aggregate, ctx)
        server = server.with_groups(networks=networks) if networks else server
        delay = float(server.scalars["delay_seconds"]) + seconds
        return server.with_scalars(steps=(ctx.round + 1) * self.schedule.steps, delay_seconds=delay)

    def server_metrics(self, server: Payload) -> Mapping[str, float]:
        ledger = self.exchange_ledger(server)
        moved = {"points_moved": ("pushed", "pulled"), "bytes_moved": ("bytes",)}
        totals = {name: float(sum(int(ledger[part].sum()) for part in parts)) for name, parts in moved.items() if ledger}
        return {name: float(value) for name, value in server.scalars.items()} | totals

    def _posted(self, server: Payload, offers: Tensors, ctx: Context) -> Payload:
        """Return the server with the round's offers, what they move over each link, and how long that takes."""
        reserve, config = server.groups.get("reserve", {}), self.config.delay
        point = next(
            (points[0] for name, points in offers.items() if parse(name).name == "points" and len(points)), torch.empty(0)
        )
        ledger = make_ledger(self.client_graph(ctx.seed), reserve, offers, point)
        sends_networks = "networks" in server.groups
        num_parameters = _num_parameters(server.groups[name] for name in self.shared_networks) if sends_networks else 0
        seconds = exchange_seconds(config, ledger["pushed"].tolist(), point.numel())
        seconds += exchange_seconds(config, ledger["pulled"].tolist(), point.numel(), num_parameters)
        server = _only(server, self.shared_networks).with_groups(offers=offers, ledger=ledger)
        return server.with_scalars(delay_seconds=float(server.scalars["delay_seconds"]) + seconds)

    # --- client

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        if len(data) == 0:
            return Update(ctx.client_id, 0.0, Payload()), local
        if ctx.phase == "push":
            rows = data.indices[choose_reserve(self.config, data, ctx.rng("reserve"))]
            return Update(ctx.client_id, float(len(data)), Payload({"reserve": {"points": data.samples[rows]}})), local
        received, left_out = usable_mail(received, self._mail_forms, data)
        if "reserves" in received.groups:
            local = local.with_groups(reserves=received.groups["reserves"])
        if self._synchronizes(ctx):
            local = self._synchronized(received, local, ctx)
        if local.scalars.get("synchronized") != self.schedule.interval_of(ctx.round):
            return Update(ctx.client_id, 0.0, Payload()), local
        step = self._offer if ctx.phase == "offer" else self._train
        update, local = step(nets, received, local, data, ctx)
        return replace(update, metrics={**update.metrics, **left_out}), local

    def _synchronizes(self, ctx: Context) -> bool:
        """Return whether clients take the global networks: in the first phase of an interval that trains or offers."""
        begins = self.schedule.interval_of(ctx.round) == ctx.round
        return begins and ctx.phase == ("offer" if self.schedule.pulls(ctx.round) else "train")

    def _sends_local_networks(self, round: int) -> bool:
        """Return whether clients send their networks to neighbours, for a pull before the next aggregation."""
        return "local_networks" in self.shares and self.schedule.pulls(round + 1) and not self.schedule.ends_interval(round)

    def _synchronized(self, received: Payload, local: Payload, ctx: Context) -> Payload:
        """Return the client's state at the start of an interval: the global networks, and what it got from its neighbours."""
        networks = {name: received.groups[name] for name in self.shared_networks}
        local = _only(local, (*KEPT, *([] if self.config.restart_optimizer else ["optimizer"])))
        if self.config.by_importance and ctx.phase == "train":  # the next pull sees its candidates through these
            local = local.with_groups(global_networks=Payload(networks).flatten())
        if self.training.proximal_weight:
            local = local.with_groups(anchor=_by_parameter(networks))
        return local.with_groups(**networks).with_scalars(synchronized=ctx.round, num_rounds=0, num_points=0)

    def _offer(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        config = self.config
        embed: Embed = lambda networks, samples: self._embed(nets, networks, samples, ctx)  # noqa: E731
        embed_pair: EmbedPair = lambda networks, samples: self._embed_pair(nets, networks, samples, ctx)  # noqa: E731
        reserves = {sender: sent["points"] for sender, sent in by_sender(local.groups.get("reserves", {})).items()}
        networks = by_sender(received.groups.get("networks", {}))
        if config.by_importance and "candidates" not in local.groups:
            held = Payload.unflatten(local.groups["global_networks"]) if "global_networks" in local.groups else local
            found = look_at_candidates(config, embed, embed_pair, held, reserves, data, ctx)
            local = _only(local, [name for name in local.groups if name != "global_networks"]).with_groups(candidates=found)
        table: Tensors = local.groups.get("candidates", {"positions": torch.arange(len(data))})
        offers: dict[str, Tensor] = {}
        for neighbor in self.client_graph(ctx.seed).neighbors(ctx.client_id):
            losses = None
            if neighbor in networks and neighbor in reserves:
                theirs = Payload.unflatten(networks[neighbor])
                candidates = data.samples[data.indices[table["positions"]]]
                seen = receivers_losses(config, embed, embed_pair, theirs, reserves[neighbor], candidates)
                losses = seen if bool(seen.isfinite().all()) else None
            progress = ctx.round / self.info.num_rounds
            rows = data.indices[draw_for(config, table, neighbor, losses, progress, ctx.rng(f"draw for {neighbor}"))]
            offers |= {address(neighbor, "points"): data.samples[rows], address(neighbor, "rows"): rows}
        return Update(ctx.client_id, float(len(data)), Payload({"offers": offers})), local

    def _embed_pair(self, nets: nn.ModuleDict, networks: Payload, reserve: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return embeddings of reserve points and of views of them."""
        views = self.views.first(as_float(reserve.to(ctx.device)), ctx.rng("views", ctx.device))
        return self._embed(nets, networks, reserve, ctx), self._embed(nets, networks, views, ctx)

    @torch.no_grad()
    def _embed(self, nets: nn.ModuleDict, networks: Payload, samples: Tensor, ctx: Context) -> Tensor:
        """Return embeddings of samples through these networks, on the CPU."""
        for name in self.shared_networks:
            load_state(nets[name], networks.groups[name])
        nets.eval()
        batches = (as_float(batch.to(ctx.device)) for batch in samples.split(EMBED_BATCH))
        return torch.cat([self.represent(nets, batch).float().cpu() for batch in batches])

    def _train(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        local = self._with_buffer(received, local, data, ctx)
        buffer = local.groups.get("buffer") or make_buffer({}, data.samples)
        joined = DataWithReceived(data.samples, data.indices, None, data.device, received=buffer["points"])
        draws = Draws(joined)
        for name in self.shared_networks:
            load_state(nets[name], local.groups[name])
        nets.train()
        parameters = dict(nets.named_parameters())
        learning_rate = self.training.learning_rate_at(ctx.round, self.info.num_rounds)
        optimizer = make_optimizer(self.training, list(parameters.values()), learning_rate)
        load_optimizer_state(optimizer, parameters, local.groups.get("optimizer", {}))
        with in_precision(nets, self.training.precision), in_parts(nets, self.training.micro_batch):
            metrics = train_locally(
                list(parameters.values()),
                lambda batch, generator: self.loss(nets, draws.kept(batch), generator),
                joined,
                self.training,
                ctx,
                learning_rate=learning_rate,
                min_batch_size=self.min_batch_size,
                optimizer=optimizer,
                source=f"{self.name}.loss",
                anchor=[local.groups["anchor"][name].to(ctx.device) for name in parameters]
                if "anchor" in local.groups
                else None,
            )
        networks: dict[str, Tensors] = {name: get_state(nets[name]) for name in self.shared_networks}
        drawn = draws.rows(torch.cat([data.indices, buffer["rows"]]))
        if int(local.scalars.get("trained", -1)) >= self.schedule.pull_interval_of(ctx.round):
            drawn = {name: torch.cat([local.groups["drawn"][name], rows]) for name, rows in drawn.items()}
        local = local.with_groups(drawn=drawn).with_scalars(trained=ctx.round)
        num_rounds, num_points = int(local.scalars["num_rounds"]) + 1, int(local.scalars["num_points"]) + len(joined)
        memory = get_optimizer_state(optimizer, parameters)
        if self.schedule.ends_interval(ctx.round):
            # (5): the weight is the mean size of the data since the last aggregation.
            update = Update(ctx.client_id, num_points / num_rounds, Payload(networks), metrics)
            kept = _only(local, KEPT)
            return update, kept if self.config.restart_optimizer else kept.with_groups(optimizer=memory)
        shared = {"local_networks": Payload(networks).flatten()} if self._sends_local_networks(ctx.round) else {}
        local = local.with_groups(**networks, optimizer=memory).with_scalars(num_rounds=num_rounds, num_points=num_points)
        return Update(ctx.client_id, float(len(joined)), Payload(shared), metrics), local

    def _with_buffer(self, received: Payload, local: Payload, data: ClientData, ctx: Context) -> Payload:
        """Return the client's state with the points of this pull; those of earlier pulls go unless the buffer is unlimited."""
        if not self.schedule.pulls(ctx.round):
            return local
        buffer = make_buffer(by_sender(received.groups.get("offers", {})), data.samples)
        if self.config.buffer == "unlimited" and "buffer" in local.groups:
            buffer = join_buffers(local.groups["buffer"], buffer)
        return local.with_groups(buffer=buffer)


def _only(payload: Payload, names: Sequence[str]) -> Payload:
    """Return the payload with these groups alone; scalars stay."""
    return Payload({name: payload.groups[name] for name in names if name in payload.groups}, payload.scalars)


def _num_parameters(groups: Iterable[Tensors]) -> int:
    return sum(tensor.numel() for group in groups for tensor in group.values())


def _by_parameter(networks: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """Return the tensors of all networks under the names that their parameters have in a ModuleDict."""
    return {f"{net}.{name}": tensor for net, tensors in networks.items() for name, tensor in tensors.items()}
