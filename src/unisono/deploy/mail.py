"""Mail between neighbours through the server: a client seals what it sends, and opens what it received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from torch import Tensor

from unisono.core.addressing import parse
from unisono.core.errors import UserError
from unisono.core.forms import is_sealed
from unisono.core.method import Method
from unisono.core.payload import Payload, Reveals, Tensors, Update
from unisono.data.received import left_out
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.policy import Gate
from unisono.deploy.sealing import Sealer
from unisono.engines.flower.messages import Request


class Mail:
    """Mail of one client in one run.

    Args:
        directory: the client's.
        run: name of the run.
        method: tells what is mail, and who is whose neighbour.
        gate: asked before anything is sent.
    """

    def __init__(self, directory: ClientDirectory, run: str, method: Method, gate: Gate) -> None:
        self._directory = directory
        self._client_id = directory.config.client_id
        self._run = run
        self._method = method
        self._gate = gate

    @cached_property
    def _sealer(self) -> Sealer:
        if not self._directory.key.is_file():
            raise UserError(f"This needs a key of the client, {self._directory.key}, as 'unisono deploy init' makes them.")
        return Sealer(self._client_id, self._directory.key, self._directory.keys)

    def sealed(self, update: Update, request: Request) -> Update:
        """Return the update with every tensor of data sealed for those it is meant for."""
        shares = self._method.shares
        groups = {
            group: self._seal_group(tensors, request) if shares[group].reveals is Reveals.DATA else tensors
            for group, tensors in update.payload.groups.items()
        }
        return replace(update, payload=Payload(groups))

    def opened(self, request: Request) -> tuple[Payload, Mapping[str, float]]:
        """Return what only this client received, opened, and a metric for each whose mail is left out.

        Mail is left out that cannot be opened, and samples that nobody has sealed: the server could have put them there.
        """
        groups: dict[str, Tensors] = {}
        reasons: dict[int, str] = {}
        for group, tensors in request.routed.groups.items():
            found = {}
            for name, tensor in tensors.items():
                sender = parse(name).sender
                try:
                    found[name] = self._open(f"{group}/{name}", sender, tensor, self._place(request, parse(name).name))
                except ValueError as error:
                    if sender is None:
                        raise
                    reasons[sender] = str(error)
            groups[group] = found
        kept = {
            group: {name: tensor for name, tensor in tensors.items() if parse(name).sender not in reasons}
            for group, tensors in groups.items()
        }
        return Payload(kept, request.routed.scalars), left_out(reasons)

    def _seal_group(self, tensors: Tensors, request: Request) -> Tensors:
        graph = self._method.client_graph(request.seed)
        neighbours = [] if graph is None else list(graph.neighbors(self._client_id))
        sealed = {}
        for name, tensor in tensors.items():
            place = parse(name)
            receivers = neighbours if place.receiver is None else [place.receiver]
            if not set(receivers) <= set(neighbours):
                raise ValueError(f"{name} is addressed to a client that is no neighbour")
            self._gate.exchange(receivers, len(tensor))
            sealed[name] = self._sealer.seal(tensor, receivers, self._place(request, place.name))
        return sealed

    def _open(self, name: str, sender: int | None, tensor: Tensor, place: str) -> Tensor:
        if is_sealed(tensor):
            if sender is None:
                raise ValueError(f"{name} is sealed and does not name its sender")
            return self._sealer.open(tensor, sender, place)
        if tuple(tensor.shape[1:]) == self._method.info.input_shape:
            raise ValueError(f"{name} looks like samples that nobody has sealed")
        return tensor

    def _place(self, request: Request, part: str) -> str:
        return f"{self._run}|{request.round}|{part}"
