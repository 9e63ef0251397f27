"""A network that misbehaves, by seed: the real round loop and the real clients, with a grid between them that does not help.

One seed decides everything: which messages are lost, late, repeated, out of order or damaged, when a client or the server is
restarted, when a node is away, and how far the clock jumps. A seed that breaks a promise breaks it again.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from reliability.federation import SMALL, Everybody, LocalGrid, make_clients, open_client
from reliability.weather import ChaosGrid, Clock, ServerDownError, Weather
from unisono.config import Config, resolve
from unisono.core.errors import UserError
from unisono.core.method import Method
from unisono.core.wire import to_bytes
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.ledger import Ledger
from unisono.deploy.negotiation import run_info_of
from unisono.deploy.server import public_tree
from unisono.engines.flower import engine as engine_module
from unisono.engines.flower import membership as membership_module
from unisono.engines.flower.engine import FlowerEngine, ServerPolicy
from unisono.engines.flower.membership import FlowerMembership, Membership
from unisono.engines.flower.pace import Pace
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import Callback, RoundLoop, RoundRecord, ServerState
from unisono.federation.postprocess import Postprocessor
from unisono.recipes import build_tree
from unisono.runs.checkpoint import Checkpoints

NUM_CLIENTS, NUM_ROUNDS = 4, 3
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where schedules are played: nothing has to outlive them."""
TIMEOUT = 20.0
MOST_RESTARTS = 30
SETTINGS = (
    *SMALL, f"federation.rounds={NUM_ROUNDS}", "federation.strict=false", "federation.quorum=0.5", "federation.retries=30",
    "cohort.size=3", "data.image_size=8", "data.channels=1", "run.seed=5", "training.batch_size=64",
)  # fmt: skip


@dataclass
class Counted(Callback):
    """Clients that were counted, and the failures, by round; a server that goes back to its checkpoint forgets the rest."""

    rounds: list[list[int]] = field(default_factory=list)
    named: list[set[int]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def on_run_start(self, state: ServerState) -> None:
        del self.rounds[state.round :], self.named[state.round :], self.asked[state.round :]

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.rounds.append([stats.client_id for _, stats in record.clients])
        self.named.append({failure.client_id for failure in record.failures})
        self.asked.append(record.num_asked)


class Present(Everybody):
    """Members of an undisturbed run: exactly those clients are present that were counted.

    Args:
        counted: clients by round.
        progress: tells the round.
    """

    def __init__(self, counted: Sequence[Sequence[int]], progress: Counted) -> None:
        super().__init__(NUM_CLIENTS)
        self._counted = counted
        self._progress = progress

    def available(self) -> Sequence[int]:
        """Return the clients that were counted in this round."""
        return sorted(self._counted[len(self._progress.rounds)])


@dataclass(frozen=True)
class Schedule:
    """Outcome of one seed.

    Args:
        seed: which.
        problems: promises that were broken, one sentence each.
        restarts: of the server.
        counted: clients by round.
    """

    seed: int
    problems: list[str]
    restarts: int
    counted: list[list[int]]

    @property
    def is_finished(self) -> bool:
        """True if all rounds were done; a server that is restarted too often gives up, and what it has is checked."""
        return len(self.counted) == NUM_ROUNDS


def play(seed: int, template: Path) -> Schedule:
    """Play the schedule of a seed and check every promise.

    Args:
        seed: decides everything.
        template: directories of a federation that was never used.
    """
    rng = random.Random(seed)
    weather = Weather.draw(rng)
    with tempfile.TemporaryDirectory(prefix="unisono-chaos-", dir=MEMORY) as scratch:
        path = Path(scratch) / "federation"
        shutil.copytree(template, path)
        counted, restarts = Counted(), 0
        checkpoints = Checkpoints(Path(scratch) / "checkpoints", keep=2)
        clock = Clock(rng, weather.jump)
        grid = ChaosGrid(path, rng, weather, clock, NUM_CLIENTS)
        with virtual(clock):
            while len(counted.rounds) < NUM_ROUNDS and restarts <= MOST_RESTARTS:
                try:
                    serve(grid, connect(grid), [counted], checkpoints)
                except (ServerDownError, UserError):
                    restarts += 1
        problems = _check(counted, grid, path)
        if counted.rounds:
            found = checkpoints.server_at(checkpoints.rounds()[-1])
            if to_bytes(found) != undisturbed(tuple(map(tuple, counted.rounds)), template):
                problems.append("the model is not the one of the answers that were counted")
        return Schedule(seed, problems, restarts, counted.rounds)


@cache
def undisturbed(counted: tuple[tuple[int, ...], ...], template: Path) -> bytes:
    """Return the server's state after rounds in which these clients were counted, without any trouble."""
    with tempfile.TemporaryDirectory(prefix="unisono-chaos-", dir=MEMORY) as scratch:
        path, progress = Path(scratch) / "federation", Counted()
        shutil.copytree(template, path)
        grid = LocalGrid([open_client(path, number) for number in range(NUM_CLIENTS)])
        return to_bytes(serve(grid, Present(counted, progress), [progress], None, len(counted)).server)


def connect(grid: LocalGrid) -> FlowerMembership:
    """Let all clients describe themselves, as far as they can be reached."""
    config, _, _ = _setting()
    question = {"config": public_tree(config), "run_info": INFO, "num_clients": NUM_CLIENTS, "num_rounds": NUM_ROUNDS}
    members = FlowerMembership(grid, NUM_CLIENTS, None, question)
    members.wait(NUM_CLIENTS, 60.0)
    members.patience, members.wanted = 60.0, 2
    return members


def serve(
    grid: LocalGrid,
    members: Membership,
    callbacks: Sequence[Callback],
    checkpoints: Checkpoints | None,
    rounds: int = NUM_ROUNDS,
) -> ServerState:
    """Run the server's loop from its newest checkpoint to the end.

    Args:
        grid: between server and clients.
        members: who is there.
        callbacks: told who was counted.
        checkpoints: written after every round; none for an undisturbed run.
        rounds: where the end is.
    """
    config, method, spec = _setting()
    postprocessor = Postprocessor(config.privacy, config.compression, method.shares)
    policy = ServerPolicy(method, postprocessor, config.aggregation, TIMEOUT, poll=0.5)
    store = ClientStateStore()
    loop = RoundLoop(method, FlowerEngine(grid, members, policy, spec), store, config.loop, config.run.seed)
    state = loop.initial_state()
    if checkpoints is None:
        return loop.run(state, callbacks, rounds)
    if checkpoints.rounds():
        state = checkpoints.load(checkpoints.rounds()[-1], store).state
    return loop.run(state, [*callbacks, _Saving(checkpoints, store)])


class _Saving(Callback):
    def __init__(self, checkpoints: Checkpoints, store: ClientStateStore) -> None:
        self._checkpoints = checkpoints
        self._store = store

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self._checkpoints.save(state, self._store, {})


INFO: dict[str, Any] = {
    "input_shape": [1, 8, 8], "mean": [0.5], "std": [0.25], "num_classes": None, "num_clients": NUM_CLIENTS, "num_rounds": 3,
}  # fmt: skip


@cache
def _setting() -> tuple[Config, Method, str]:
    config = resolve(build_tree("simclr", {}, SETTINGS)).fitted((1, 8, 8), on_gpu=False, has_bf16=False)
    spec = json.dumps({"run": "run-1", "config": public_tree(config), "run_info": INFO})
    return config, config.method_class(config.method, run_info_of(INFO, config)), spec


def _check(counted: Counted, grid: ChaosGrid, path: Path) -> list[str]:
    problems = []
    for round, clients in enumerate(counted.rounds):
        if len(set(clients)) != len(clients):
            problems.append(f"round {round}: a client is counted twice in {clients}")
        if len(set(clients) | counted.named[round]) != counted.asked[round]:
            problems.append(
                f"round {round}: {counted.asked[round]} were asked, {clients} counted, {counted.named[round]} named"
            )
    for client in range(NUM_CLIENTS):
        ledger = Ledger(ClientDirectory.open(path / f"client-{client}"))
        intents = sum(line["kind"] == "train" for line in ledger.intents)
        if intents < grid.updates_sent[client]:
            problems.append(f"client {client}: {grid.updates_sent[client]} updates left, and its ledger has {intents}")
    return problems


@contextmanager
def virtual(clock: Clock) -> Iterator[None]:
    """Give the server's loop a clock of its own."""
    modules: Sequence[Any] = (engine_module, membership_module)
    real, real_pace = [module.time for module in modules], Pace
    try:
        for module in modules:
            module.time = clock
        engine_module.Pace = partial(Pace, now=clock.monotonic)  # type: ignore[misc, assignment]
        yield
    finally:
        engine_module.Pace = real_pace  # type: ignore[misc]
        for module, time in zip(modules, real, strict=True):
            module.time = time


def make_template(path: Path) -> Path:
    """Make a federation that schedules copy."""
    make_clients(path / "federation", path / "data", NUM_CLIENTS)
    return path / "federation"


def chaos(first: int = 0, number: int = 5000, jobs: int = 2) -> int:
    """Play many seeds and print what was found; return the exit code.

    Args:
        first: seed.
        number: of seeds.
        jobs: schedules at a time.
    """
    with tempfile.TemporaryDirectory(prefix="unisono-chaos-") as scratch:
        template = make_template(Path(scratch))
        work = [(seed, template) for seed in range(first, first + number)]
        with multiprocessing.get_context("spawn").Pool(jobs, initializer=quiet) as pool:
            played = pool.starmap(play, work, chunksize=8)
    bad = [schedule for schedule in played if schedule.problems]
    for schedule in bad:
        print(f"seed {schedule.seed}: {'; '.join(schedule.problems)}")
    print(
        f"{number} schedules, {sum(schedule.is_finished for schedule in played)} played to their end, "
        f"{sum(bool(schedule.counted) for schedule in played)} models compared after their last round, "
        f"{sum(schedule.restarts for schedule in played)} restarts of the server, {len(bad)} broken promises"
    )
    return 1 if bad else 0


def quiet() -> None:
    """Silence the clients' logs, which tell of every refusal and damaged message."""
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
