"""Flower's simulation: clients in Ray's actors, on one machine or on a Ray cluster.

Local states stay with the server, as in the embedded engine, and travel with the messages; any actor can answer for any client.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from flwr.app import Context as FlowerContext
from flwr.app import UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.engines.devices import num_cores, threads
from unisono.engines.embedded import EngineConfig
from unisono.engines.flower.client_app import make_client_app
from unisono.engines.flower.engine import FlowerEngine, ServerPolicy
from unisono.engines.flower.environment import SIMULATION_NOTE
from unisono.engines.flower.membership import SimulatedMembership
from unisono.engines.flower.simulated_client import Opener, SimulatedClient
from unisono.engines.lanes import Workshop
from unisono.federation.rounds import Observer, Outcome, Work


class RaySimulation:
    """Nodes of a Flower simulation, as long as the context lasts.

    Args:
        num_nodes: how many.
        app: what they run.
        config: how many actors, and what each of them gets.
    """

    def __init__(self, num_nodes: int, app: ClientApp, config: EngineConfig) -> None:
        self._num_nodes = num_nodes
        self._app = app
        self._config = config
        self._grids: queue.Queue[Grid | BaseException] = queue.Queue()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._simulate, name="flower simulation", daemon=True)

    def __enter__(self) -> Grid:
        warnings.warn(SIMULATION_NOTE, FutureWarning, stacklevel=2)  # Flower's own words are longer, and kept quiet below
        self._thread.start()
        grid = self._grids.get()
        if isinstance(grid, BaseException):
            self._thread.join()
            raise UserError(f"Flower's simulation did not start: {grid}.") from grid
        return grid

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _simulate(self) -> None:
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: FlowerContext) -> None:
            self._grids.put(grid)
            self._done.wait()

        try:
            with _quiet():
                run_simulation(server, self._app, self._num_nodes, backend_config=backend_config(self._config))
        except BaseException as error:
            # Whoever waits for the grid gets it; a simulation that breaks later shows as clients that do not answer.
            self._grids.put(error)
        finally:
            self._done.set()

    @property
    def is_alive(self) -> bool:
        """Whether nodes can still answer."""
        return self._thread.is_alive() and not self._done.is_set()


def backend_config(config: EngineConfig) -> dict[str, Any]:
    """Flower's words for the table ``[engine]``."""
    resources = {"num_cpus": config.client_cpus, "num_gpus": config.client_gpus}
    start: dict[str, Any] = {"include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False}
    if config.ray_address is not None:
        return {"client_resources": resources, "init_args": {**start, "address": config.ray_address}}
    workers = num_cores() if not config.workers else config.workers
    return {"client_resources": resources, "init_args": {**start, "num_cpus": max(1, round(workers * config.client_cpus))}}


def simulated_app(open_workshop: Opener) -> ClientApp:
    """The ClientApp of simulated nodes."""
    handler = SimulatedClient(open_workshop)

    def open_handler(node_config: UserConfig) -> SimulatedClient:
        return handler

    return make_client_app(open_handler)


class RayEngine:
    """Runs clients in Flower's simulation.

    Args:
        workshop: method, data and rules, as the server sees them.
        config: actors and their resources.
        terms: describes the run; ``open_workshop`` makes the same workshop of it in every actor.
        open_workshop: see Opener.
    """

    def __init__(self, workshop: Workshop, config: EngineConfig, terms: str, open_workshop: Opener) -> None:
        self._workshop = workshop
        self._config = config
        self._terms = terms
        self._simulation = RaySimulation(len(workshop.clients), simulated_app(open_workshop), config)
        self._engine: FlowerEngine | None = None

    @property
    def num_clients(self) -> int:
        """Size of the federation."""
        return len(self._workshop.clients)

    def reachable(self) -> None:
        """All clients can be asked."""

    def open(self, broadcast: Payload) -> None:
        """Starts Ray and the actors."""
        if self._engine is None:
            grid = self._simulation.__enter__()
            self._engine = grid_engine(grid, self._workshop, self._config, self._terms, self.num_clients)

    def exchange(self, work: Work, observers: Sequence[Observer] = ()) -> Outcome:
        """Asks every client of the work and reduces their answers."""
        self.open(work.broadcast)
        if self._engine is None or not self._simulation.is_alive:
            raise RuntimeError("Flower's simulation has ended")
        with threads(1):
            return self._engine.exchange(work, observers)

    def close(self) -> None:
        """Ends the actors and Ray."""
        if self._engine is not None:
            self._simulation.__exit__()
            self._engine = None

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ExternalGridEngine(RayEngine):
    """Runs clients in a simulation that somebody else has started and will end, such as ``flwr run``.

    Args:
        grid: the simulation's.
        workshop: method, data and rules, as the server sees them.
        config: rules for answers.
        terms: describes the run.
        num_nodes: how many nodes there are; any number serves.
    """

    def __init__(self, grid: Grid, workshop: Workshop, config: EngineConfig, terms: str, num_nodes: int) -> None:
        self._workshop = workshop
        self._engine = grid_engine(grid, workshop, config, terms, num_nodes)

    def open(self, broadcast: Payload) -> None:
        """It is open."""

    def exchange(self, work: Work, observers: Sequence[Observer] = ()) -> Outcome:
        """Asks every client of the work and reduces their answers."""
        if self._engine is None:
            raise RuntimeError("the engine is closed")
        return self._engine.exchange(work, observers)

    def close(self) -> None:
        """Leaves the simulation to its owner."""


def grid_engine(grid: Grid, workshop: Workshop, config: EngineConfig, terms: str, num_nodes: int) -> FlowerEngine:
    """The engine over the grid of a simulation that runs already, with so many nodes."""
    while len(nodes := list(grid.get_node_ids())) < num_nodes:  # they are registered moments after the grid is there
        time.sleep(0.02)
    policy = ServerPolicy(
        workshop.method, workshop.postprocessor, workshop.aggregation, config.client_timeout, config.max_answer
    )
    return FlowerEngine(grid, SimulatedMembership(nodes, workshop.clients), policy, terms)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Flower's words on the terminal; failures reach the run's own log."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
