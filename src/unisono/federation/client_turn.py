"""Client updates: load, step, check, post-process. Every engine runs clients through ``run_client``."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.errors import ClientError, MethodError, describe
from unisono.core.mapped import Reference, is_mapped, referred
from unisono.core.method import Method
from unisono.core.payload import Payload, Share, Update
from unisono.core.wire import lay_out
from unisono.data.partition import Rows
from unisono.federation.aggregate import Accumulator
from unisono.federation.declared import check_update, check_weight, sent_shares
from unisono.federation.postprocess import RESIDUAL, Postprocessor
from unisono.methods.training_loop import TrainingConfig
from unisono.models.nets import lending


@dataclass(frozen=True)
class ClientStats:
    """Numbers about one client update, besides the update itself."""

    client_id: int
    num_samples: int
    bytes_down: int
    bytes_up: int
    seconds: float
    metrics: Mapping[str, float]
    owner: Mapping[str, Any] = field(default_factory=dict)
    """Words of a real client about its own rules: the hash of its policy, the head of its ledger."""


@dataclass(frozen=True)
class ClientResult:
    """A client's update as it left the client, its new local state, and its statistics.

    Args:
        update: what it shares.
        local: its state after the step.
        stats: numbers about it.
        card: first message of a masked sum; None where nothing is masked.
    """

    update: Update
    local: Payload
    stats: ClientStats
    card: Mapping[str, Any] | None = None


class FederatedDataset:
    """The samples of all clients of a simulation.

    Args:
        samples: all training samples, shared by all clients.
        indices: the rows of each client.
        labels: visible labels of all samples, -1 where hidden; None where the method may see none.
        num_clustered_rows: as in ``ClientData``.
    """

    def __init__(
        self, samples: Tensor, indices: Sequence[Tensor], labels: Tensor | None, num_clustered_rows: int | None = None
    ) -> None:
        self.samples = samples
        self.labels = labels
        self.num_clustered_rows = num_clustered_rows
        joined = Rows.of(indices)
        self._rows = joined.rows
        self._ends = [0, *joined.sizes.cumsum(0).tolist()]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def num_samples(self, client_id: int) -> int:
        """Return the number of samples that a client owns."""
        return int(self._ends[client_id + 1] - self._ends[client_id])

    def client_data(self, client_id: int, device: torch.device) -> ClientData:
        """Return the data that a client's step is given."""
        rows = self._rows[self._ends[client_id] : self._ends[client_id + 1]]
        labels = None if self.labels is None else self.labels[rows]
        return ClientData(self.samples, rows, labels, device, self.num_clustered_rows)

    def share_memory(self) -> None:
        """Move the tensors to shared memory, so that worker processes hold no copies; samples in a mapped file are shared."""
        for tensor in (self.samples, self._rows, self.labels):
            if tensor is not None and not is_mapped(tensor):
                tensor.share_memory_()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"samples": referred(self.samples)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        samples = state["samples"]
        self.__dict__ |= state | {"samples": samples.open() if isinstance(samples, Reference) else samples}


def prepare_nets(method: Method, device: torch.device) -> nn.ModuleDict:
    """Return the method's networks on the device, in the memory format and compilation of ``[training]``."""
    training = method.info.section(TrainingConfig)
    nets = method.build_networks().to(device)
    method.check_networks(nets)
    if training.channels_last and len(method.info.input_shape) == 3:
        nets = nets.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if training.compile:
        for net in nets.values():
            net.compile()
    return nets


def run_client(
    method: Method,
    nets: nn.ModuleDict,
    received: Payload,
    local: Payload,
    data: ClientData,
    ctx: Context,
    postprocessor: Postprocessor,
    lent: bool = False,
) -> ClientResult:
    """One client's answer, or a ClientError that names round, phase and client; a MethodError is no client's failure.

    ``lent``: the update may hold the networks' own tensors, as the caller reads it before it runs another client.
    """
    start = time.perf_counter()
    try:
        own = Payload({name: group for name, group in local.groups.items() if name != RESIDUAL}, local.scalars)
        before = _versions(received)
        with _settings_kept(), lending(lent):
            update, new_local = method.client_step(nets, received, own, data, ctx)
        _check_unwritten(method, received, before)
        if update.client_id != ctx.client_id:
            raise ValueError(f"the update must carry its own client's id, ctx.client_id, got {update.client_id}")
        update = replace(update, payload=_on_cpu(update.payload))
        check_update(update, sent_shares(method, ctx), received)
        check_weight(update, method.max_weight(len(data)))
        lay_out(new_local)
        if RESIDUAL in local.groups:
            new_local = new_local.with_groups(**{RESIDUAL: local.groups[RESIDUAL]})
        update, new_local = postprocessor.encode(update, received, _on_cpu(new_local), ctx)
    except MethodError:
        raise
    except (Exception, SystemExit) as error:
        raise ClientError(ctx.round, ctx.phase, ctx.client_id, describe(error), traceback.format_exc()) from error
    stats = ClientStats(
        ctx.client_id,
        len(data),
        received.num_bytes,
        update.payload.num_bytes,
        time.perf_counter() - start,
        dict(update.metrics),
    )
    return ClientResult(update, new_local, stats)


def accept_update(
    update: Update,
    received: Payload,
    shares: Mapping[str, Share],
    postprocessor: Postprocessor,
    accumulator: Accumulator,
    ctx: Context,
) -> None:
    """Decode a client's update on the server, check it, and add it to the accumulator.

    Raises a ClientError, and adds nothing, if the update is not what the method declared. An update that needs no decoding has
    passed the check in ``run_client``; a server that got it from elsewhere checks it first.
    """
    try:
        decoded = postprocessor.decode(update, received)
        if decoded is not update:
            check_update(decoded, shares, received)
        accumulator.add(decoded)
    except Exception as error:
        raise ClientError(ctx.round, ctx.phase, ctx.client_id, describe(error), traceback.format_exc()) from error


@contextmanager
def _settings_kept() -> Iterator[None]:
    """Undo what a client sets for its whole process: torch's default type, its gradient mode and its threads."""
    dtype, gradients, threads = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _versions(payload: Payload) -> dict[str, int]:
    """Return torch's counts of writes into each tensor."""
    return {name: tensor._version for name, tensor in payload.tensors()}


def _check_unwritten(method: Method, received: Payload, before: Mapping[str, int]) -> None:
    """Raise a MethodError if a step wrote into what it received: in a simulation, other clients receive the same memory."""
    written = [name for name, version in _versions(received).items() if version != before[name]]
    if written:
        raise MethodError(f"{method.name}.client_step wrote into {written[0]} of received, which is read-only: clone it first.")


def _on_cpu(payload: Payload) -> Payload:
    """Return the payload with every tensor on the CPU; the same object where they are there already."""
    if all(tensor.device.type == "cpu" for _, tensor in payload.tensors()):
        return payload
    return Payload.unflatten({name: tensor.cpu() for name, tensor in payload.tensors()}, payload.scalars, payload.groups)
