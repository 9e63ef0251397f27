"""The embedded engine: persistent processes on one machine, one thread each.

The samples and what the server broadcasts lie in shared memory; each worker has one scratch set of networks and returns one
partial sum per lane through its own block of shared memory. So a round moves as many models as there are lanes, not clients.
Which worker runs a lane changes nothing: the bits are the same for any number of workers, and for none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import Field

from unisono.core.config import Section
from unisono.core.payload import Payload
from unisono.engines.devices import num_cores, resolve_devices, threads
from unisono.engines.lanes import LaneMerger, LaneRunner, LaneTask, Workshop
from unisono.engines.pool import WorkerPool
from unisono.federation.aggregate import Fold, deal_to_lanes
from unisono.federation.rounds import Observer, Outcome, Work
from unisono.federation.worker import Report


class EngineConfig(Section):
    """Where clients run: the table ``[engine]``."""

    kind: Literal["embedded", "flower"] = Field(
        "embedded", description="embedded: processes on this machine; flower: Flower's simulation on Ray"
    )
    workers: int | None = Field(None, ge=0, description="worker processes; 0 runs in the calling process; default one per core")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:INDEX or mps; workers are spread over all GPUs of cuda")
    start: Literal["auto", "fork", "spawn"] = Field(
        "auto", description="how workers begin; auto: fork on the CPU, spawn on GPUs"
    )
    client_timeout: float | None = Field(None, gt=0, description="seconds after which a client counts as failed")
    max_answer: float = Field(1024.0, gt=0, description="flower: largest answer of a client that is read, in MiB")
    client_cpus: float = Field(1.0, gt=0, description="flower: cores that Ray reserves for a client at work")
    client_gpus: float = Field(0.0, ge=0, description="flower: GPUs that Ray reserves for a client at work, such as 0.25")
    ray_address: str | None = Field(
        None, description="flower: a Ray cluster that runs already, such as auto; unset: start one here"
    )
    state_memory: float = Field(2.0, gt=0, description="GiB of client states kept in memory; the rest goes to disk")


class EmbeddedEngine:
    """Runs clients in worker processes, or in the caller where ``workers`` is 0.

    Args:
        workshop: method, data and rules.
        config: workers and devices.
    """

    def __init__(self, workshop: Workshop, config: EngineConfig) -> None:
        self._workshop = workshop
        self._devices = resolve_devices(config.device)
        self.num_workers = num_cores() if config.workers is None else config.workers
        self._start = config.start
        self._timeout = config.client_timeout
        self._runner: LaneRunner | None = None
        self._pool: WorkerPool | None = None

    @property
    def num_clients(self) -> int:
        """Size of the federation."""
        return len(self._workshop.clients)

    def reachable(self) -> None:
        """All clients can be asked."""

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return [] if self._pool is None else self._pool.pids

    def open(self, broadcast: Payload) -> None:
        """Starts the workers, with room for this broadcast; ``exchange`` does it too where needed."""
        if self.num_workers == 0:
            if self._runner is None:
                self._runner = LaneRunner(self._workshop, self._devices[0])
        elif self._pool is None or not self._pool.has_room_for(broadcast):
            self.close()
            self._workshop.clients.share_memory()
            self._pool = WorkerPool(
                self._workshop, self._devices, self.num_workers, broadcast.num_bytes, self._timeout, self._start
            )

    def exchange(self, work: Work, observers: Sequence[Observer] = ()) -> Outcome:
        """Asks every client of the work and reduces their answers, lane by lane in order."""
        self.open(work.broadcast)
        sizes = {client_id: self._workshop.clients.num_samples(client_id) for client_id in work.clients}
        tasks = [
            LaneTask(
                lane,
                work.ctx,
                clients,
                {client_id: work.routed[client_id] for client_id in clients if client_id in work.routed},
                {client_id: work.locals[client_id] for client_id in clients if client_id in work.locals},
            )
            for lane, clients in enumerate(deal_to_lanes(sizes))
        ]
        merger = LaneMerger(Outcome(Fold(self._workshop.method.shares, self._workshop.aggregation)))
        with threads(1):  # more threads here would only take turns with the workers
            self._run(tasks, work.broadcast, _once_per_client(work.ctx.phase, observers), merger.take)
        return merger.outcome

    def close(self) -> None:
        """Ends the workers."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> EmbeddedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self,
        tasks: list[LaneTask],
        broadcast: Payload,
        on_report: Callable[[Report], None],
        on_result: Callable[[int, Outcome], None],
    ) -> None:
        if self._pool is not None:
            self._pool.run(tasks, broadcast, on_report, on_result)
            return
        if self._runner is None:
            raise RuntimeError("the engine is not open")
        for task in tasks:
            on_result(task.lane, self._runner.run(task, broadcast, on_report=on_report))


def _once_per_client(phase: str, observers: Sequence[Observer]) -> Callable[[Report], None]:
    """Tells observers of each client once, though a lane may be redone."""
    seen: set[int] = set()

    def tell(report: Report) -> None:
        if report.client_id not in seen:
            seen.add(report.client_id)
            for observer in observers:
                observer.on_client(phase, report)

    return tell
