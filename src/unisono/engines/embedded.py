"""The embedded engine: persistent processes on one machine, one thread each.

The samples and what the server broadcasts lie in shared memory; each worker has one scratch set of networks and returns one
partial sum per shard through its own block of shared memory. So a round moves as many models as there are shards, not clients.
Which worker runs a shard changes nothing: results are bit-identical for any number of workers, and for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from pydantic import Field

from unisono.core.config import Section
from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.engines.devices import num_cores, resolve_devices, threads
from unisono.engines.shards import ShardMerger, ShardRunner, ShardTask, WorkerSetup
from unisono.engines.worker_pool import WorkerPool
from unisono.federation.aggregate import NUM_SHARDS, Accumulator, assign_shards
from unisono.federation.client_turn import ClientStats
from unisono.federation.loop import Callback, PhaseResult, PhaseTask


class EngineConfig(Section):
    """Engine, workers and devices: the table ``[engine]``."""

    kind: Literal["embedded", "flower"] = Field(
        "embedded", description="embedded: processes on this machine; flower: Flower's simulation on Ray"
    )
    workers: int | None = Field(
        None, ge=0, description="worker processes (embedded: 8 at most); 0 runs in the calling process; default one per core"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:INDEX or mps; workers are spread over all GPUs of cuda")
    start_method: Literal["auto", "fork", "spawn"] = Field(
        "auto", description="how workers are started; auto: fork on the CPU, spawn on GPUs"
    )
    client_timeout: float | None = Field(None, gt=0, description="seconds after which a client counts as failed")
    max_message_mib: float = Field(1024.0, gt=0, description="flower: largest message of a client that is read, in MiB")
    client_cpus: float = Field(1.0, gt=0, description="flower: cores that Ray reserves for a client at work")
    client_gpus: float = Field(0.0, ge=0, description="flower: GPUs that Ray reserves for a client at work, such as 0.25")
    ray_address: str | None = Field(
        None, description="flower: a Ray cluster that runs already, such as auto; unset: start one here"
    )
    state_memory_gib: float = Field(2.0, gt=0, description="GiB of client states kept in memory; the rest goes to disk")

    @property
    def num_workers(self) -> int:
        """Worker processes that have something to do: on the embedded engine no more than there are shards."""
        wanted = num_cores() if self.workers is None else self.workers
        return min(NUM_SHARDS, wanted) if self.kind == "embedded" else wanted


class EmbeddedEngine:
    """Engine that runs clients in worker processes, or in the caller where ``workers`` is 0.

    Args:
        setup: method, data and rules.
        config: workers and devices.
    """

    def __init__(self, setup: WorkerSetup, config: EngineConfig) -> None:
        self._setup = setup
        self._devices = resolve_devices(config.device)
        self.num_workers = config.num_workers
        self._start = config.start_method
        self._timeout = config.client_timeout
        self._runner: ShardRunner | None = None
        self._pool: WorkerPool | None = None

    @property
    def num_clients(self) -> int:
        """Size of the federation."""
        return len(self._setup.clients)

    def available(self) -> None:
        """Return None: all clients are available."""

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return [] if self._pool is None else self._pool.pids

    def open(self, broadcast: Payload) -> None:
        """Start the workers, with room for this broadcast; ``run_phase`` does it too where needed."""
        if self.num_workers == 0:
            if self._runner is None:
                self._runner = ShardRunner(self._setup, self._devices[0])
        elif self._pool is None or not self._pool.has_room_for(broadcast):
            self.close()
            with _shared_memory_explained():
                self._setup.clients.share_memory()
                self._pool = WorkerPool(
                    self._setup, self._devices, self.num_workers, broadcast.num_bytes, self._timeout, self._start
                )

    def run_phase(self, task: PhaseTask, callbacks: Sequence[Callback] = ()) -> PhaseResult:
        """Run every client of the task and reduce their updates, shard by shard in order."""
        self.open(task.broadcast)
        sizes = {client_id: self._setup.clients.num_samples(client_id) for client_id in task.clients}
        tasks = [
            ShardTask(
                shard,
                task.ctx,
                clients,
                {client_id: task.routed[client_id] for client_id in clients if client_id in task.routed},
                {client_id: task.locals[client_id] for client_id in clients if client_id in task.locals},
            )
            for shard, clients in enumerate(assign_shards(sizes))
        ]
        merger = ShardMerger(PhaseResult(Accumulator(self._setup.method.shares, self._setup.aggregation)))
        with threads(1):  # more threads here would only take turns with the workers
            self._run(tasks, task.broadcast, _once_per_client(task.ctx.phase, callbacks), merger.take)
        return merger.phase_result

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> EmbeddedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self,
        tasks: list[ShardTask],
        broadcast: Payload,
        on_clients_end: Callable[[Sequence[ClientStats]], None],
        on_result: Callable[[int, PhaseResult], None],
    ) -> None:
        if self._pool is not None:
            self._pool.run(tasks, broadcast, on_clients_end, on_result)
            return
        if self._runner is None:
            raise RuntimeError("the engine is not open")
        for task in tasks:
            result = self._runner.run(task, broadcast, on_client_end=lambda stats: on_clients_end([stats]))
            on_result(task.shard, result)


@contextmanager
def _shared_memory_explained() -> Iterator[None]:
    """Turn the refusal of shared memory into one sentence."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if not any(word in str(error) for word in ("shm", "shared memory", "No space left", "/torch_")):
            raise
        raise UserError(
            "There is not enough shared memory (/dev/shm) for the samples and the workers: set engine.workers = 0, which needs "
            "none, or enlarge it (in a container: --shm-size)."
        ) from error


def _once_per_client(phase: str, callbacks: Sequence[Callback]) -> Callable[[Sequence[ClientStats]], None]:
    """Return a function that tells callbacks of each client once, though a shard may be redone."""
    seen: set[int] = set()

    def tell(clients: Sequence[ClientStats]) -> None:
        for stats in clients:
            if stats.client_id not in seen:
                seen.add(stats.client_id)
                for callback in callbacks:
                    callback.on_client_end(phase, stats)

    return tell
