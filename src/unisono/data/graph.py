"""Links between clients: the table ``[graph]``, a pure function of config, number of clients and seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import UserError

Edge = tuple[int, int]
ATTEMPTS = 1000
"""Number of attempts to draw places of clients until their graph is connected."""


class GraphConfig(Section):
    """Links between clients, for methods whose clients exchange data: the table ``[graph]``."""

    topology: Literal["geometric", "ring", "complete", "edges"] = Field(
        "geometric", description="geometric: clients at random places, the nearest are linked, all are connected"
    )
    mean_degree: float = Field(3.0, gt=0, description="geometric: neighbours per client, on average; everyone at most")
    edges: tuple[Edge, ...] = Field((), description="edges: pairs of clients, numbered from 0")


@dataclass(frozen=True, eq=False)
class ClientGraph:
    """An undirected graph.

    Args:
        num_clients: numbered from 0.
        edges: pairs (a, b) with a < b, ascending, each once.
        places: where clients stand in the unit square, shape (num_clients, 2); None where they stand nowhere.
    """

    num_clients: int
    edges: tuple[Edge, ...]
    places: NDArray[np.float64] | None = None

    def neighbors(self, client: int) -> tuple[int, ...]:
        """Return the clients linked to a client, ascending."""
        return self._neighbors[client]

    @property
    def mean_degree(self) -> float:
        """Neighbours per client, on average."""
        return 2 * len(self.edges) / self.num_clients

    @property
    def num_parts(self) -> int:
        """Number of parts without a link between them; 1 where all are connected."""
        import networkx

        return int(networkx.number_connected_components(self.as_networkx()))

    def as_networkx(self) -> Any:
        """Return the same graph as a ``networkx.Graph``."""
        import networkx

        graph = networkx.empty_graph(self.num_clients)
        graph.add_edges_from(self.edges)
        return graph

    @cached_property
    def _neighbors(self) -> list[tuple[int, ...]]:
        found: list[list[int]] = [[] for _ in range(self.num_clients)]
        for first, second in self.edges:
            found[first].append(second)
            found[second].append(first)
        return [tuple(sorted(neighbors)) for neighbors in found]


@lru_cache(maxsize=16)
def make_graph(config: GraphConfig, num_clients: int, seed: int) -> ClientGraph:
    """Return the graph that config and seed decide.

    Args:
        config: the table ``[graph]``.
        num_clients: size of the federation.
        seed: the run's seed.
    """
    if config.edges and config.topology != "edges":
        raise UserError(f"graph.edges needs graph.topology = 'edges', got {config.topology!r}.")
    if config.topology == "geometric":
        return _geometric(config.mean_degree, num_clients, Context(seed).numpy_rng("graph"))
    if config.topology == "edges":
        return ClientGraph(num_clients, _checked(config.edges, num_clients))
    everyone = range(num_clients)
    if config.topology == "ring":
        pairs = {tuple(sorted((a, (a + 1) % num_clients))) for a in everyone if num_clients > 1}
        return ClientGraph(num_clients, tuple(sorted((a, b) for a, b in pairs)))
    return ClientGraph(num_clients, tuple((a, b) for a in everyone for b in everyone if a < b))


def _geometric(mean_degree: float, num_clients: int, rng: np.random.Generator) -> ClientGraph:
    """Return a graph at random places, drawn until the nearest pairs, as many as the mean degree asks for, connect all clients.

    Linking the nearest pairs is linking all pairs nearer than some radius, so this is a random geometric graph whose mean
    degree is met exactly.
    """
    first, second = np.triu_indices(num_clients, 1)
    num_edges = min(round(num_clients * mean_degree / 2), len(first))
    for _ in range(ATTEMPTS if num_edges >= num_clients - 1 else 0):
        places = rng.random((num_clients, 2))
        nearest = np.argsort(np.square(places[first] - places[second]).sum(axis=1), kind="stable")[:num_edges]
        edges = sorted(zip(first[nearest].tolist(), second[nearest].tolist(), strict=True))
        graph = ClientGraph(num_clients, tuple(edges), places)
        if graph.num_parts == 1:
            return graph
    raise UserError(
        f"graph.mean_degree must be higher for a connected geometric graph of {num_clients} clients, got {mean_degree:g}: "
        "raise it or choose another graph.topology."
    )


def _checked(edges: tuple[Edge, ...], num_clients: int) -> tuple[Edge, ...]:
    if not edges:
        raise UserError("graph.edges is required with graph.topology = 'edges', for example edges = [[0, 1], [1, 2]].")
    for edge in edges:
        if not all(0 <= client < num_clients for client in edge) or edge[0] == edge[1]:
            raise UserError(f"graph.edges must be pairs of different clients from 0 to {num_clients - 1}, got {list(edge)}.")
    return tuple(sorted({(min(edge), max(edge)) for edge in edges}))
