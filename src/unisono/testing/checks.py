"""Checks of the contract of methods; each takes a method and raises an AssertionError with a sentence if it is broken."""

from __future__ import annotations

import pickle
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.method import Method, methods
from unisono.core.payload import Payload, Update
from unisono.core.wire import from_bytes, to_bytes
from unisono.federation.client_store import ClientStateStore
from unisono.federation.client_turn import FederatedDataset, prepare_nets
from unisono.federation.declared import check_update
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.models.nets import build_seeded
from unisono.runs.checkpoint import Checkpoints
from unisono.testing.tiny import SIZES, TinyFederation, same_bits, tiny_clients

CPU = torch.device("cpu")
REPLAYED = 2
"""Clients of every phase whose step is repeated on fresh networks."""


@dataclass(frozen=True)
class Step:
    """A client's step of an observed run."""

    ctx: Context
    received: Payload
    local: Payload
    before: tuple[bytes, bytes]
    update: Update
    new_local: Payload
    touched: str | None


class Subject:
    """A method under check, with the runs that several checks look at.

    Args:
        method: its name, ``package.module:NAME`` or ``file.py``.
        options: config tables that replace those of ``tiny_config``.
    """

    def __init__(self, method: str, options: Mapping[str, Any]) -> None:
        self.method = method
        self.options = options

    @property
    def cls(self) -> type[Method]:
        """The method's class."""
        return methods[self.method]

    def federation(self, over: Mapping[str, Any] | None = None, **arguments: Any) -> TinyFederation:
        """Return a new federation of this method; ``over`` changes single options."""
        tree = {name: dict(table) for name, table in self.options.items()}
        for name, table in (over or {}).items():
            tree[name] = {**tree.get(name, {}), **table}
        return TinyFederation(self.method, over=tree, **arguments)

    @cached_property
    def finished(self) -> tuple[TinyFederation, ServerState]:
        """A whole run without workers, and its last state."""
        federation = self.federation()
        return federation, federation.run()

    @cached_property
    def observed(self) -> tuple[TinyFederation, list[Step]]:
        """A whole run whose client steps were written down."""
        federation = self.federation()
        step, steps = federation.method.client_step, []

        def watched(nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context) -> Any:
            before, random_before = (to_bytes(received), to_bytes(local)), global_randomness()
            update, new_local = step(nets, received, local, data, ctx)
            touched = next((name for name, state in global_randomness().items() if random_before[name] != state), None)
            # Networks lend their tensors to an update; what is looked at later must be a copy.
            steps.append(Step(ctx, received, local, before, deepcopy(update), new_local, touched))
            return update, new_local

        federation.method.client_step = watched  # type: ignore[method-assign]
        federation.run()
        federation.method.client_step = step  # type: ignore[method-assign]
        _require(bool(steps), "no client was asked in three rounds")
        return federation, steps


def global_randomness() -> dict[str, bytes]:
    """Return the states of the global random generators, by the name of their package."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr((kind, keys.tobytes(), rest)).encode(),  # type: ignore[union-attr]
        "random": repr(random.getstate()).encode(),
    }


def check_config_kept(subject: Subject) -> None:
    """``config`` and ``info`` are what the method was given."""
    method, config = subject.federation().method, subject.federation().config
    _require(method.config == config.method, "self.config is not the table that the method was given")
    _require(isinstance(method.config, subject.cls.Config), f"self.config is no {subject.cls.Config.__name__}")
    _require(method.info.num_clients == len(SIZES), "self.info is not the RunInfo that the method was given")


def check_summary(subject: Subject) -> None:
    """The docstring begins with one sentence."""
    lines = (subject.cls.__doc__ or "").strip().splitlines()
    _require(bool(lines), "the class has no docstring; lists of methods show its first line")
    _require(lines[0].endswith((".", "?")), f"the docstring's first line is no sentence: {lines[0]!r}")


def check_defaults(subject: Subject) -> None:
    """``defaults`` names tables and options that exist."""
    known = subject.federation().config.as_tree()
    for table, options in subject.cls.defaults.items():
        _require(isinstance(known.get(table), Mapping), f"defaults names the table {table!r}, which does not exist")
        for option in options:
            _require(option in known[table], f"defaults names the option {table}.{option}, which does not exist")


def check_pickles(subject: Subject) -> None:
    """Worker processes that are started anew can be sent the method."""
    method = subject.federation().method
    copy = pickle.loads(pickle.dumps(method))
    _require(copy.config == method.config and copy.info == method.info, "a pickled copy has another config or info")
    _require(dict(copy.shares) == dict(method.shares), "a pickled copy has other shares")


def check_network_roles(subject: Subject) -> None:
    """Every network has a role."""
    method = subject.federation().method
    method.check_networks(build_seeded(method.build_networks, 0))


def check_loss(subject: Subject) -> None:
    """All clients train in all phases, on a loss that can be minimised."""
    _, state = subject.finished
    _require(state.round == 3, f"the run stopped after round {state.round}")


def check_training_changes_the_server(subject: Subject) -> None:
    """Training changes what the server holds."""
    federation, state = subject.finished
    _require(not same_bits(ServerState(3, federation.start().server), state), "three rounds left the server state as it was")


def check_shares(subject: Subject) -> None:
    """Updates hold what is declared in every phase, and every declared group is sent."""
    federation, steps = subject.observed
    shares, sent = federation.method.shares, set()
    for step in steps:
        _require(step.update.client_id == step.ctx.client_id, "an update does not carry the id of its client, ctx.client_id")
        try:
            check_update(step.update, shares, step.received)
        except ValueError as error:
            raise AssertionError(f"{_place(step.ctx)}: {error}") from error
        sent |= set(step.update.payload.groups)
    missing = sorted(set(shares) - sent)
    _require(not missing, f"shares declares {', '.join(missing)}, and no client sent that in three rounds")


def check_inputs_are_read_only(subject: Subject) -> None:
    """No step writes into what it was given."""
    for step in subject.observed[1]:
        now = to_bytes(step.received), to_bytes(step.local)
        for name, old, new in zip(("received", "local"), step.before, now, strict=True):
            _require(old == new, f"{_place(step.ctx)}: client_step wrote into {name}")


def check_messages_as_bytes(subject: Subject) -> None:
    """Messages that travelled as bytes give the same update; so does a step that is repeated."""
    _repeat(subject, lambda steps: steps, "when the step is repeated on messages that travelled as bytes", fresh=False)


def check_client_isolation(subject: Subject) -> None:
    """A client's result does not depend on what another client left in the networks."""
    _repeat(subject, _first_of_each_phase, "on fresh networks; load every network, for nets hold what another client left")


def check_global_randomness(subject: Subject) -> None:
    """Client steps leave the global generators of torch, numpy and random alone."""
    for step in subject.observed[1]:
        _require(
            step.touched is None,
            f"{_place(step.ctx)}: client_step drew from the global generator of {step.touched}; draw from ctx.rng or the "
            "generator that loss is given",
        )


def check_workers(subject: Subject) -> None:
    """The same seed gives bit-identical results for any number of workers."""
    for workers in (1, 4):
        state = subject.federation(workers=workers).run()
        _require(same_bits(state, subject.finished[1]), f"{workers} worker processes give another end state than none")


def check_seed(subject: Subject) -> None:
    """Another seed gives other bits."""
    first, second = (subject.federation(seed=seed).run(until=1) for seed in (0, 1))
    _require(not same_bits(first, second), "two seeds give the same state; draw from ctx.rng")


def check_failing_client(subject: Subject) -> None:
    """The run survives a client that fails."""
    whole = tiny_clients(subject.federation().method.needs_labels)
    clients = _WithoutClientThree(whole.samples, torch.arange(sum(SIZES)).split(list(SIZES)), whole.labels)
    failures = _Failures()
    over = {"federation": {"strict": False, "quorum": 0.3}, "cohort": {"size": len(SIZES)}}
    state = subject.federation(over, clients=clients).run(callbacks=[failures])
    _require(state.round == 3, "the run did not reach its last round")
    _require(failures.clients == {3}, f"clients {sorted(failures.clients)} failed, and only client 3 should")
    _require_finite(state)


def check_single_samples(subject: Subject) -> None:
    """The run survives clients of one sample."""
    clients = tiny_clients(subject.federation().method.needs_labels, sizes=(1, 1, 5))
    _require_finite(subject.federation({"cohort": {"size": 3}}, clients=clients).run())


def check_resume(subject: Subject) -> None:
    """A run that is resumed from a checkpoint ends with bit-identical results."""
    undisturbed, expected = subject.finished
    first, second = subject.federation(), subject.federation()
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder) / "checkpoints")
        checkpoints.save(first.run(until=2), first.store, {})
        resumed = second.run(checkpoints.load(2, second.store).state)
        _require(same_bits(resumed, expected), "a resumed run ends with another server state; keep all state in payloads")
        _require(_states(second.store) == _states(undisturbed.store), "a resumed run ends with other local states")


def check_encoder(subject: Subject) -> None:
    """The encoder is in eval mode and gives finite features."""
    federation, state = subject.finished
    encoder = federation.method.encoder(state.server)
    _require(not encoder.training, "encoder returned a module in train mode; call eval()")
    features = encoder(federation.clients.samples[:5].float() / 255)
    _require(features.dim() == 2 and len(features) == 5, f"5 samples have features of shape {tuple(features.shape)}")
    _require(bool(torch.isfinite(features).all()), "features are not finite")


def check_projector(subject: Subject) -> None:
    """The projector, where there is one, takes the encoder's features, and clients that evaluate receive it."""
    federation, state = subject.finished
    method, samples = federation.method, federation.clients.samples[:5].float() / 255
    received = method.broadcast(state.server, Context(0, state.round))  # outside of any phase, as clients that evaluate get it
    outputs = [_project(method, held, samples) for held in (state.server, received)]
    _require(torch.equal(*outputs), "outside of any phase, broadcast does not give the encoder and projector of the server")


CHECKS: dict[str, Callable[[Subject], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_summary, check_config_kept, check_defaults, check_pickles, check_network_roles, check_loss,
        check_training_changes_the_server, check_shares, check_inputs_are_read_only, check_messages_as_bytes,
        check_client_isolation, check_global_randomness, check_seed, check_workers, check_failing_client, check_single_samples,
        check_resume, check_encoder, check_projector,
    )
}  # fmt: skip
"""All checks by name, the quickest first."""


def _repeat(
    subject: Subject, chosen: Callable[[list[Step]], list[Step] | Iterator[Step]], reason: str, fresh: bool = True
) -> None:
    """Take steps again, on messages that have been bytes, and compare what comes out."""
    federation, steps = subject.observed
    nets = prepare_nets(federation.method, CPU)
    for step in chosen(steps):
        nets = build_seeded(lambda: prepare_nets(federation.method, CPU), 1 + step.ctx.client_id) if fresh else nets
        data = federation.clients.client_data(step.ctx.client_id, CPU)
        received, local = (from_bytes(content) for content in step.before)
        update, new_local = federation.method.client_step(nets, received, local, data, step.ctx)
        same = to_bytes(update.payload) == to_bytes(step.update.payload)
        _require(same, f"{_place(step.ctx)}: the update is another {reason}")
        same = to_bytes(new_local) == to_bytes(step.new_local)
        _require(same, f"{_place(step.ctx)}: the local state is another {reason}")


def _first_of_each_phase(steps: list[Step]) -> Iterator[Step]:
    """Yield some steps of every phase, but never the first of the run, for whom all networks are fresh."""
    counts: dict[str, int] = {}
    for step in steps[1:]:
        counts[step.ctx.phase] = counts.get(step.ctx.phase, 0) + 1
        if counts[step.ctx.phase] <= REPLAYED:
            yield step


def _project(method: Method, server: Payload, samples: torch.Tensor) -> torch.Tensor:
    features, projector = method.encoder(server)(samples), method.projector(server) or nn.Identity().eval()
    _require(not projector.training, "projector returned a module in train mode; call eval()")
    try:
        outputs: torch.Tensor = projector(features)
    except RuntimeError as error:
        raise AssertionError(f"projector does not take the encoder's features, {tuple(features.shape)}: {error}") from error
    _require(outputs.dim() == 2 and bool(torch.isfinite(outputs).all()), "projections are no finite vectors")
    return outputs


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(sentence)


def _require_finite(state: ServerState) -> None:
    for name, tensor in state.server.tensors():
        finite = not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
        _require(finite, f"{name} of the server state is not finite")


def _place(ctx: Context) -> str:
    return f"round {ctx.round + 1}, phase {ctx.phase}, client {ctx.client_id}"


def _states(store: ClientStateStore) -> dict[int, bytes]:
    return {client_id: to_bytes(store.get(client_id)) for client_id in store}


class _WithoutClientThree(FederatedDataset):
    """Clients of which number 3 cannot read its data."""

    def client_data(self, client_id: int, device: torch.device) -> ClientData:
        data = super().client_data(client_id, device)
        if client_id == 3:
            return ClientData(data.samples, data.indices + 10**6, data.labels, device)
        return data


class _Failures(Callback):
    """Remembers who failed."""

    def __init__(self) -> None:
        self.clients: set[int] = set()

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.clients |= {failure.client_id for failure in record.failures}
