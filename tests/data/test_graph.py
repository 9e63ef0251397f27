from __future__ import annotations

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.core.errors import UserError
from unisono.data.graph import ClientGraph, GraphConfig, make_graph


@given(seed=st.integers(0, 10_000), num_clients=st.integers(1, 14), mean_degree=st.sampled_from([3.0, 4.0, 13.0]))
@settings(max_examples=30)
def test_geometric_is_connected_and_has_the_mean_degree(seed: int, num_clients: int, mean_degree: float) -> None:
    graph = make_graph(GraphConfig(mean_degree=mean_degree), num_clients, seed)
    assert networkx.is_connected(graph.as_networkx())
    expected = min(mean_degree, num_clients - 1)
    assert graph.mean_degree == pytest.approx(expected, abs=1.001 / num_clients)


def test_geometric_links_all_pairs_nearer_than_a_radius() -> None:
    graph = make_graph(GraphConfig(), 10, 3)
    places = graph.places
    assert places is not None
    distances = {(a, b): float(np.linalg.norm(places[a] - places[b])) for a in range(10) for b in range(a + 1, 10)}
    radius = max(distances[edge] for edge in graph.edges)
    assert set(graph.edges) == {edge for edge, distance in distances.items() if distance <= radius}


def test_seed_decides() -> None:
    make_graph.cache_clear()
    first = make_graph(GraphConfig(), 10, 0).edges
    make_graph.cache_clear()
    assert make_graph(GraphConfig(), 10, 0).edges == first
    assert make_graph(GraphConfig(), 10, 1).edges != first


@pytest.mark.parametrize(
    ("topology", "num_clients", "edges"),
    [
        ("ring", 4, ((0, 1), (0, 3), (1, 2), (2, 3))),
        ("ring", 2, ((0, 1),)),
        ("ring", 1, ()),
        ("complete", 3, ((0, 1), (0, 2), (1, 2))),
        ("complete", 1, ()),
    ],
)
def test_regular_graphs(topology: str, num_clients: int, edges: tuple[tuple[int, int], ...]) -> None:
    assert make_graph(GraphConfig(topology=topology), num_clients, 0).edges == edges  # type: ignore[arg-type]


def test_listed_edges_are_undirected_and_counted_once() -> None:
    graph = make_graph(GraphConfig(topology="edges", edges=((2, 0), (0, 2), (1, 2))), 4, 0)
    assert graph.edges == ((0, 2), (1, 2))
    assert [graph.neighbors(client) for client in range(4)] == [(2,), (2,), (0, 1), ()]
    assert graph.num_parts == 2


@given(seed=st.integers(0, 100))
@settings(max_examples=10)
def test_neighbors_are_mutual(seed: int) -> None:
    graph = make_graph(GraphConfig(), 8, seed)
    links = {(a, b) for a in range(8) for b in graph.neighbors(a)}
    assert links == {(b, a) for a, b in links}
    assert len(links) == 2 * len(graph.edges)
    assert all(a != b for a, b in links)


@pytest.mark.parametrize(
    ("config", "num_clients", "message"),
    [
        (GraphConfig(mean_degree=1.0), 10, "graph.mean_degree must be higher"),
        (GraphConfig(mean_degree=2.2), 40, "graph.mean_degree must be higher"),
        (GraphConfig(topology="edges"), 3, "graph.edges is required"),
        (GraphConfig(topology="edges", edges=((0, 3),)), 3, r"from 0 to 2, got \[0, 3\]"),
        (GraphConfig(topology="edges", edges=((1, 1),)), 3, r"pairs of different clients"),
        (GraphConfig(edges=((0, 1),)), 3, "graph.edges needs graph.topology = 'edges'"),
    ],
)
def test_impossible_graphs(config: GraphConfig, num_clients: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_graph(config, num_clients, 0)


def test_mean_degree() -> None:
    assert ClientGraph(4, ((0, 1), (2, 3))).mean_degree == 1.0
