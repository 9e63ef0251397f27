"""Method: the contract between a learning method and everything that runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, final

from torch import Tensor, nn
from typing_extensions import TypeVar as TypeVarWithDefault

from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import MethodError
from unisono.core.payload import Aggregate, Payload, Share, Tensors, Update
from unisono.core.registry import Registry

S = TypeVar("S", bound=Section)
C = TypeVarWithDefault("C", bound=Section, default=Any)
"""The class of a method's own config table."""


@dataclass(frozen=True)
class Phase:
    """One exchange with the clients inside a round.

    Args:
        name: the method's own word for it.
        all_clients: ask every reachable client, not only the round's cohort.
    """

    name: str
    all_clients: bool = False


@dataclass(frozen=True)
class RunInfo:
    """Facts about the run that a method is part of.

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
        """Return the config table of this class, with its defaults where the run has none."""
        return next((section for section in self.sections if isinstance(section, kind)), None) or kind()


class ClientGraph(Protocol):
    """The clients that send each other data."""

    def neighbors(self, client: int) -> Sequence[int]:
        """Return those linked to a client, ascending."""


class Guarantee(Protocol):
    """A promise about the statistics that clients release, and what is left of it after some releases."""

    @property
    def noise_is_repeatable(self) -> bool:
        """True if the server could draw the same noise and subtract it; clients of a real federation refuse that."""

    def numbers(self, releases: Mapping[int, int], smallest: int | None) -> dict[str, Any]:
        """Return what the log and the report state.

        Args:
            releases: how often each client has released statistics so far.
            smallest: fewest samples behind any released centroid so far, where clients tell.
        """

    def by_client(self, releases: Mapping[int, int]) -> Mapping[int, float]:
        """Return the epsilon of every client that has released anything; nothing where the promise has no epsilon."""

    def statement(self, releases: Mapping[int, int], smallest: int | None) -> str:
        """Return the promise in words."""


class Method(ABC, Generic[C]):
    """A federated learning method: what clients compute, what leaves them, and how the server combines it.

    Methods are stateless: all state is in payloads, so one object runs in worker processes, in a simulation and on a real
    federation. ``self.config`` (an instance of ``Config``) and ``self.info`` are set before ``setup`` runs.

    Args:
        config: the method's own table, an instance of ``Config``.
        info: facts about the run: shapes, number of clients, rounds.
    """

    Config: ClassVar[type[Section]] = Section
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Defaults that this method sets in other config tables, such as ``{"views": {"preset": "byol"}}``."""
    needs_labels: bool = False
    """True if ``client_step`` needs the clients' (visible) labels; a method may decide it by its config."""
    phase_names: ClassVar[tuple[str, ...]] = ("train",)
    """The names of all phases that ``phases`` may return; clients of a real federation answer no other."""
    single_phases: ClassVar[tuple[str, ...]] = ()
    """Those of them that a run has once: clients of a real federation answer them no more often, in whatever round."""
    exchange_phases: ClassVar[tuple[str, ...]] = ()
    """The phases that training without exchange of data would not have; their time is logged apart."""
    name: ClassVar[str] = "method"
    """The name that it is registered under, else that of its class; messages use it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__name__
        if "__init__" in cls.__dict__:
            raise MethodError(
                f"{cls.__name__} must not define __init__, which keeps config and info for every method: write setup(self), "
                "which reads self.config and self.info."
            )

    def __new__(cls, *_: Any) -> Self:
        missing = sorted(getattr(cls, "__abstractmethods__", ()))
        if missing:
            raise MethodError(f"{cls.name} is not complete: it must write {', '.join(missing)}.")
        return super().__new__(cls)

    @final
    def __init__(self, config: C, info: RunInfo) -> None:
        self.config = config
        self.info = info
        self.setup()

    def setup(self) -> None:
        """Check options against ``self.info``, derive constants. Raise UserError to refuse the run before it starts."""
        return

    @final
    @classmethod
    def overrides(cls, hook: str) -> bool:
        """Return whether an optional hook is implemented."""
        return getattr(cls, hook) is not getattr(Method, hook)

    # --- required

    @property
    @abstractmethod
    def shares(self) -> Mapping[str, Share]:
        """The tensor groups that may leave a client. Anything else is refused on the client."""

    @abstractmethod
    def build_networks(self) -> nn.ModuleDict:
        """Create all networks. A worker calls this once and reuses them for every client."""

    @abstractmethod
    def init_server(self, ctx: Context) -> Payload:
        """Return the server state before the first round."""

    @abstractmethod
    def broadcast(self, server: Payload, ctx: Context) -> Payload:
        """Return what every client of this phase receives."""

    @abstractmethod
    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        """Compute a client's update and its new local state: copies, for the next client reuses ``nets``.

        Args:
            nets: the networks as some other client left them: load every network that you use.
            received: broadcast and ``send_to_client`` in one; read-only.
            local: what this client's last step returned, empty at first; read-only.
            data: the client's samples.
            ctx: round, phase, client, and randomness.
        """

    @abstractmethod
    def server_step(self, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        """Return the next server state; ``aggregate.means`` has already passed through the server optimizer."""

    @abstractmethod
    def encoder(self, server: Payload) -> nn.Module:
        """Return the feature extractor in eval mode, for evaluation and users."""

    # --- optional: the course of a run

    def check_networks(self, nets: nn.ModuleDict) -> None:
        """Raise a UserError if the networks are not what the method declares. Called before the run."""
        return

    def phases(self, round: int, server: Payload) -> Sequence[Phase]:
        """Return the exchanges of a round, in order; the server's state may decide, such as by a loss that stopped falling."""
        return (Phase("train"),)

    def groups_sent(self, ctx: Context) -> Collection[str]:
        """Return the groups of ``shares`` that an update of this round and phase may carry. Default: all of them.

        Clients refuse to send any other, and under secure aggregation mask every one of them that is averaged.
        """
        return self.shares.keys()

    def max_weight(self, num_samples: int) -> float:
        """Return the largest ``Update.weight`` of a client with this many samples; an answer with a larger one is refused."""
        return float(max(1, num_samples))

    def send_to_client(self, server: Payload, ctx: Context) -> Payload:
        """Return extra data for client ``ctx.client_id`` only, on top of the broadcast."""
        return Payload()

    def server_metrics(self, server: Payload) -> Mapping[str, float]:
        """Return numbers of the server state to log every round."""
        return {}

    def preflight_warnings(self, client_sizes: Sequence[int]) -> Sequence[str]:
        """Return warnings to show and record before the run, from the clients' numbers of samples."""
        return ()

    @classmethod
    def study_problem(cls, config: Section, clients_per_round: int, scale: str) -> str | None:
        """Return why a study should not run this, such as too few clients for what it tests; None if it may.

        Args:
            config: the method's own table.
            clients_per_round: that a round asks.
            scale: paper, where numbers are the paper's, or small, where they are ours.
        """
        return None

    def round_notes(self, before: Payload, after: Payload) -> Sequence[str]:
        """Return messages about a finished round, from the server states before and after it."""
        return ()

    # --- optional: capabilities; a hook that is not overridden means that the method does not have it

    def cluster_model(self, server: Payload) -> nn.Module | None:
        """Return a module from samples to cluster scores, (batch, clusters), in eval mode; None before there are any.

        Enables ``unisono cluster`` and the clusters probe.
        """
        return None

    def projector(self, server: Payload) -> nn.Module | None:
        """Return the module from the encoder's features to the space of the loss, in eval mode; None where there is none.

        Enables the probe alignment on its outputs; without it the probe looks at the encoder's features.
        """
        return None

    def client_graph(self, seed: int) -> ClientGraph | None:
        """Return which clients send each other data; needs ``consent.share_data``.

        Enables encryption between them and ``exchange.jsonl``.
        """
        return None

    def exchange_ledger(self, server: Payload) -> Tensors:
        """Return what a round moved over each link: ``senders``, ``receivers``, ``pushed``, ``pulled`` and ``bytes``."""
        return {}

    def drawn_rows(self, local: Payload, round: int) -> Tensors:
        """Return the rows that a client's steps drew since the last exchange: ``anchors``, ``negatives``. Simulations only.

        Args:
            local: the client's state, which never leaves it.
            round: the round that has ended; nothing where the client did not train in it.
        """
        return {}

    def release_guarantee(self) -> Guarantee | None:
        """Return the privacy guarantee of the statistics that clients release."""
        return None

    def cluster_consistency(self, server: Payload, clients: Sequence[Tensor], ctx: Context) -> float | None:
        """Return the share of samples that keep their cluster if all data were in one place. Simulations only.

        Args:
            server: the server's state.
            clients: all samples of each client.
            ctx: gives randomness.
        """
        return None


M = TypeVar("M", bound=Method)
methods: Registry[type[Method]] = Registry("method", "unisono.methods")


def register(name: str) -> Callable[[type[M]], type[M]]:
    """Return a decorator that registers a method under a name."""

    def decorate(cls: type[M]) -> type[M]:
        methods.register(name)(cls)
        cls.name = name
        return cls

    return decorate
