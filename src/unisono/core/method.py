"""Method: the contract between a learning method and everything that runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from torch import nn

from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.payload import Aggregate, Payload, Share, Update
from unisono.core.registry import Registry

S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class Phase:
    """One exchange with the clients inside a round.

    Args:
        name: the method's own word for it.
        everyone: ask every reachable client, not only the round's cohort.
    """

    name: str
    everyone: bool = False


@dataclass(frozen=True)
class Setting:
    """What a method is told about the run it is part of.

    Args:
        input_shape: shape of one sample, (channels, height, width) or (channels, length).
        mean: per channel, what the encoder subtracts.
        std: per channel, what the encoder divides by.
        num_classes: number of labels, None where there are none.
        num_clients: size of the federation.
        num_rounds: length of the run.
        sections: the config tables that methods may read.
    """

    input_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_classes: int | None
    num_clients: int
    num_rounds: int
    sections: Sequence[Section] = field(default_factory=tuple)

    def section(self, kind: type[S]) -> S:
        """The config table of this class, with its defaults where the run has none."""
        return next((section for section in self.sections if isinstance(section, kind)), None) or kind()


class Method(ABC):
    """A federated learning method. It holds frozen config only; all state goes in and comes out.

    A method runs unchanged in the embedded engine, in a simulation on a cluster, and on a real federation, so what
    ``client_step`` reads has crossed the wire in ``received`` or lives in that client's own ``local``.

    Args:
        config: the method's own table, an instance of ``Config``.
        setting: the run around it.
    """

    Config: ClassVar[type[Section]] = Section
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """What this method wants in other tables where the user says nothing, such as ``{"views": {"preset": "byol"}}``."""
    needs_labels: bool = False
    """Whether clients hand their (visible) labels to ``client_step``; a method may decide it by its config."""

    def __init__(self, config: Section, setting: Setting) -> None:
        self.setting = setting

    @property
    @abstractmethod
    def shares(self) -> Mapping[str, Share]:
        """What may leave a client, by group; the engine refuses anything else."""

    @abstractmethod
    def build(self) -> nn.ModuleDict:
        """The named networks, freshly made; a worker builds them once and reloads them in place for every client."""

    def phases(self, round: int, server: Payload) -> Sequence[Phase]:
        """The exchanges of this round, in order; the server's state may decide, such as by a loss that has stopped falling."""
        return (Phase("train"),)

    @abstractmethod
    def init_server(self, ctx: Context) -> Payload:
        """The server's state before the first round."""

    @abstractmethod
    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        """What every client of this phase receives."""

    def route(self, server: Payload, ctx: Context) -> Payload:
        """What only client ``ctx.client_id`` receives, on top of the broadcast."""
        return Payload()

    @abstractmethod
    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        """The client's answer, and its new local state: copies, for the next client reuses ``nets``.

        Args:
            nets: what ``build`` returned, in the state some other client left it: load before use.
            received: broadcast and route in one; read-only.
            local: what this client's last step returned, empty at first; read-only.
            data: the client's samples.
            ctx: round, phase, client, and randomness.
        """

    @abstractmethod
    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        """The server's next state. ``aggregate.means`` has passed through the server optimiser already."""

    def server_metrics(self, server: Payload) -> Mapping[str, float]:
        """Numbers of the server's state that are logged every round."""
        return {}

    def forewarnings(self, num_samples: Sequence[int]) -> Sequence[str]:
        """Sentences that the user should read before a run, from the clients' numbers of samples."""
        return ()

    def notes(self, before: Payload, after: Payload) -> Sequence[str]:
        """Sentences that the user should read about a round, from the server's states before and after it."""
        return ()

    @abstractmethod
    def encoder(self, server: Payload) -> nn.Module:
        """Samples to features, in eval mode: what probes and users get."""

    def assigner(self, server: Payload) -> nn.Module | None:
        """Samples to cluster scores, shape (batch, num_clusters), for methods that cluster."""
        return None


methods: Registry[type[Method]] = Registry("method", "unisono.methods")
register = methods.register
