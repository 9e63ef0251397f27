"""Load: 10,000 clients, 200 rounds of 200; one in ten fails, one in a hundred lies. Memory stays flat, nothing is lost.

The round loop, the run directory, the engine over a Flower grid and the clients' code are the real ones; the grid is in this
process, and all clients share the samples.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from flwr.app import Error, Message

from reliability.federation import SMALL, Everybody, LocalGrid
from unisono.backends import Backend
from unisono.config import Config
from unisono.core.client_data import ClientData
from unisono.core.method import Method
from unisono.deploy.negotiation import run_info_of
from unisono.deploy.runs import prepare_run
from unisono.engines.flower.engine import FlowerEngine, ServerPolicy
from unisono.engines.flower.messages import answer_content, read_request, with_checksum
from unisono.federation.client_turn import prepare_nets, run_client
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.federation.postprocess import Postprocessor
from unisono.running import execute
from unisono.runs.directory import RunDirectory

SETTINGS = (
    *SMALL, "federation.quorum=0.5", "federation.retries=2", "training.batch_size=16", "run.checkpoint_every=40",
    "engine.state_memory_gib=0.002", "training.learning_rate=0.01",
)  # fmt: skip
SAMPLES = 16
WARM_UP = 20
"""Rounds until caches are filled and states go to the disk."""


class FailingGrid(LocalGrid):
    """A grid whose clients share their samples; some give no answer, some a false one.

    Args:
        method: what is learnt.
        postprocessor: of the run.
        num_clients: how many.
    """

    def __init__(self, method: Method, postprocessor: Postprocessor, num_clients: int) -> None:
        super().__init__([])
        self._method = method
        self._postprocessor = postprocessor
        self._nets = prepare_nets(method, torch.device("cpu"))
        generator = torch.Generator().manual_seed(0)
        self._samples = torch.randint(0, 256, (SAMPLES, 1, 8, 8), dtype=torch.uint8, generator=generator)
        self.happened: Counter[str] = Counter()
        self.num_clients = num_clients

    def answer(self, message: Message) -> Message:
        request = read_request(message.content)
        rng = random.Random(f"{request.round} {request.client_id}")
        fate = rng.random()
        if fate < 0.10:
            self.happened["failed"] += 1
            return Message(Error(1, "no battery"), reply_to=message)
        data = ClientData(self._samples, torch.arange(SAMPLES), None, torch.device("cpu"))
        ctx = request.context(torch.device("cpu"))
        result = run_client(self._method, self._nets, request.received, request.local, data, ctx, self._postprocessor)
        content = answer_content(result)
        if fate < 0.11:
            self.happened["lied"] += 1
            told = json.loads(str(content.config_records["answer"]["answer"]))
            lie = rng.choice(({"weight": 1e9}, {"weight": "x"}, {"client": 0.5}, {"metrics": {"loss": float("nan")}}))
            content.config_records["answer"]["answer"] = json.dumps({**told, **lie})
            with_checksum(content)
        else:
            self.happened["answered"] += 1
        return Message(content, reply_to=message)


class Memory(Callback):
    """Megabytes of this process after every round, and the number of answers that were counted."""

    def __init__(self) -> None:
        self.megabytes: list[float] = []
        self.answered = 0

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.megabytes.append(psutil.Process(os.getpid()).memory_info().rss / 2**20)
        self.answered += len(record.clients)
        if state.round % 20 == 0:
            print(f"round {state.round}: {self.megabytes[-1]:.0f} MB", flush=True)

    @property
    def growth(self) -> float:
        """Largest memory after the warm-up, over that at its end."""
        return max(self.megabytes[WARM_UP:]) / self.megabytes[WARM_UP]


def soak(num_clients: int = 10_000, cohort: int = 200, rounds: int = 200) -> int:
    """Run the load and print what became of it; return the exit code."""
    torch.set_num_threads(1)
    start, memory = time.monotonic(), Memory()
    grids: list[FailingGrid] = []

    @contextmanager
    def opened(config: Config, directory: RunDirectory) -> Iterator[Backend]:
        info = {"input_shape": [1, 8, 8], "mean": [0.5], "std": [0.25], "num_classes": None, "num_clients": num_clients}
        config = config.fitted((1, 8, 8), on_gpu=False, has_bf16=False)
        method = config.method_class(config.method, run_info_of({**info, "num_rounds": rounds}, config))
        postprocessor = Postprocessor(config.privacy, config.compression, method.shares)
        grids.append(FailingGrid(method, postprocessor, num_clients))
        policy = ServerPolicy(method, postprocessor, config.aggregation, 60.0, poll=0.0)
        engine = FlowerEngine(grids[0], Everybody(num_clients, lambda client: SAMPLES), policy, "{}")
        yield Backend(method, engine, (), dict.fromkeys(range(num_clients), SAMPLES), "none")

    with tempfile.TemporaryDirectory(prefix="unisono-soak-") as scratch:
        settings = [*SETTINGS, f"federation.rounds={rounds}", f"cohort.size={cohort}"]
        path = prepare_run(Path(scratch), num_clients, "simclr", settings, "soak")
        execute(RunDirectory.open(path), opened, callbacks=[memory])
        directory = RunDirectory.open(path)
        counted, named = memory.answered, len(directory.logs["failures"].read())
        finished = directory.finished and not [name for name in directory.manifest.names() if directory.manifest.problem(name)]
    happened = grids[0].happened
    is_whole = finished and counted == happened["answered"] and named == happened["failed"] + happened["lied"]
    print(
        f"{num_clients} clients, {rounds} rounds of {cohort}: {happened['answered']} answers and {counted} counted, "
        f"{happened['failed']} failures and {happened['lied']} lies and {named} named, in {time.monotonic() - start:.0f} s; "
        f"memory {memory.megabytes[WARM_UP]:.0f} MB after round {WARM_UP}, at most {memory.growth:.3f} times that later"
    )
    return 0 if is_whole and memory.growth <= 1.05 else 1
