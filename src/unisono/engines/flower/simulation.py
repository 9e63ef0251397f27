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
from unisono.engines.shards import WorkerSetup
from unisono.federation.loop import Callback, PhaseResult, PhaseTask


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
        """True while nodes can still answer."""
        return self._thread.is_alive() and not self._done.is_set()


def backend_config(config: EngineConfig) -> dict[str, Any]:
    """Return the table ``[engine]`` in Flower's words."""
    resources = {"num_cpus": config.client_cpus, "num_gpus": config.client_gpus}
    start: dict[str, Any] = {"include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False}
    if config.ray_address is not None:
        return {"client_resources": resources, "init_args": {**start, "address": config.ray_address}}
    workers = num_cores() if not config.workers else config.workers
    return {"client_resources": resources, "init_args": {**start, "num_cpus": max(1, round(workers * config.client_cpus))}}


def simulated_app(build_worker_setup: Opener) -> ClientApp:
    """Return the ClientApp of simulated nodes."""
    handler = SimulatedClient(build_worker_setup)

    def open_handler(node_config: UserConfig) -> SimulatedClient:
        return handler

    return make_client_app(open_handler)


class RayEngine:
    """Engine that runs clients in Flower's simulation.

    Args:
        setup: method, data and rules, as the server sees them.
        config: actors and their resources.
        run_spec: describes the run; ``build_worker_setup`` makes the same worker setup of it in every actor.
        build_worker_setup: see Opener.
    """

    def __init__(self, setup: WorkerSetup, config: EngineConfig, run_spec: str, build_worker_setup: Opener) -> None:
        self._setup = setup
        self._config = config
        self._run_spec = run_spec
        self._simulation = RaySimulation(len(setup.clients), simulated_app(build_worker_setup), config)
        self._engine: FlowerEngine | None = None

    @property
    def num_clients(self) -> int:
        """Size of the federation."""
        return len(self._setup.clients)

    def available(self) -> None:
        """Return None: all clients are available."""

    def open(self, broadcast: Payload) -> None:
        """Start Ray and the actors."""
        if self._engine is None:
            grid = self._simulation.__enter__()
            self._engine = grid_engine(grid, self._setup, self._config, self._run_spec, self.num_clients)

    def run_phase(self, task: PhaseTask, callbacks: Sequence[Callback] = ()) -> PhaseResult:
        """Run every client of the task and reduce their updates."""
        self.open(task.broadcast)
        if self._engine is None or not self._simulation.is_alive:
            raise RuntimeError("Flower's simulation has ended")
        with threads(1):
            return self._engine.run_phase(task, callbacks)

    def close(self) -> None:
        """End the actors and Ray."""
        if self._engine is not None:
            self._simulation.__exit__()
            self._engine = None

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ExternalGridEngine(RayEngine):
    """Engine on a simulation that somebody else has started and will end, such as ``flwr run``.

    Args:
        grid: the simulation's.
        setup: method, data and rules, as the server sees them.
        config: rules for answers.
        run_spec: describes the run.
        num_nodes: how many nodes there are; any number serves.
    """

    def __init__(self, grid: Grid, setup: WorkerSetup, config: EngineConfig, run_spec: str, num_nodes: int) -> None:
        self._setup = setup
        self._engine = grid_engine(grid, setup, config, run_spec, num_nodes)

    def open(self, broadcast: Payload) -> None:
        """Do nothing: the engine is open."""

    def run_phase(self, task: PhaseTask, callbacks: Sequence[Callback] = ()) -> PhaseResult:
        """Run every client of the task and reduce their updates."""
        if self._engine is None:
            raise RuntimeError("the engine is closed")
        return self._engine.run_phase(task, callbacks)

    def close(self) -> None:
        """Do nothing: the simulation belongs to whoever started it."""


def grid_engine(grid: Grid, setup: WorkerSetup, config: EngineConfig, run_spec: str, num_nodes: int) -> FlowerEngine:
    """Return the engine over the grid of a simulation that runs already, with so many nodes."""
    while len(nodes := list(grid.get_node_ids())) < num_nodes:  # they are registered moments after the grid is there
        time.sleep(0.02)
    policy = ServerPolicy(setup.method, setup.postprocessor, setup.aggregation, config.client_timeout, config.max_message_mib)
    return FlowerEngine(grid, SimulatedMembership(nodes, setup.clients), policy, run_spec)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Flower's messages off the terminal; failures reach the run's own log."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
