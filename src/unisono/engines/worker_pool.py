"""Persistent worker processes, which run shards; one that dies is replaced."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import psutil
import torch
from torch import Tensor

from unisono.core.errors import ClientError, MethodError
from unisono.core.payload import Payload
from unisono.core.registry import UserFiles
from unisono.core.wire import Layout, lay_out, read, write
from unisono.engines.blocks import Reports, SumsBlock, Tasks, new_block, receive, send
from unisono.engines.memory import give_back_memory
from unisono.engines.shards import ShardRunner, ShardTask, WorkerSetup
from unisono.federation.client_turn import ClientStats
from unisono.federation.loop import PhaseResult

SLACK = 1 << 20
HELD_SHARDS = 2
"""Shards a worker holds at most: one under way, and the next one in advance."""
PIPE = 100_000
"""Bytes of a message that a pipe holds before anybody reads it."""
REPORT_SECONDS = 0.1
"""Seconds after which a worker reports clients of a shard that is not done: every message takes time from a worker."""
QUIET_LIMIT = 60.0
"""Seconds without any processor time after which a worker with a shard is stuck (a fork may inherit a lock) and replaced."""
MAX_DEATHS = 3
"""Number of worker deaths after which a client counts as failed."""
NO_CLIENT = -1
"""Client id for a worker that died before its first client."""


@dataclass
class _Worker:
    """A process, the shards it has been handed (the first one is under way), and the block its sums come back in.

    Sums of several shards lie in the block side by side while there is room. Then the worker asks to begin anew, and sums that
    still wait there for those of earlier shards are copied.

    Args:
        process: the process.
        connection: our end of its pipe.
        block: shared memory for sums.
        place: shared memory in which the worker writes the client under way: a message would take longer.
    """

    process: Any
    connection: Connection
    block: Tensor
    place: Tensor
    attached: list[PhaseResult] = field(default_factory=list)
    tasks: list[ShardTask] = field(default_factory=list)
    client_id: int = NO_CLIENT
    since: float = 0.0
    processor_seconds: float = 0.0
    quiet_since: float = field(default_factory=time.monotonic)

    @property
    def at_work(self) -> int:
        """The client under way."""
        return int(self.place)

    def free_block(self) -> None:
        """Copy sums that wait in the block: it is about to be written over."""
        for result in self.attached:
            result.accumulator.detach()
        self.attached.clear()


class WorkerPool:
    """Processes that run shards.

    Args:
        setup: what every worker holds.
        devices: workers are spread over them.
        num_workers: how many processes.
        num_bytes: size of a broadcast.
        timeout: seconds after which a client counts as failed and its worker is replaced.
        start_method: ``fork``, ``spawn``, or ``auto``.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        devices: Sequence[torch.device],
        num_workers: int,
        num_bytes: int,
        timeout: float | None = None,
        start_method: str = "auto",
    ) -> None:
        self._setup = setup
        self._devices = devices
        self._timeout = timeout
        # Forked workers inherit everything and start at once; a GPU cannot be used after a fork.
        can_fork = devices[0].type == "cpu" and "fork" in multiprocessing.get_all_start_methods()
        self._start_method = start_method if start_method != "auto" else "fork" if can_fork else "spawn"
        if self._start_method == "fork":
            give_back_memory()
        self._capacity = num_bytes + num_bytes // 4 + SLACK
        self._broadcast = new_block(self._capacity)
        self._workers: list[_Worker] = []
        for index in range(num_workers):
            self._workers.append(self._start(index, new_block(self._capacity)))

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def has_room_for(self, broadcast: Payload) -> bool:
        """Return whether a broadcast fits into the shared memory."""
        return lay_out(broadcast).num_bytes <= self._capacity

    def run(
        self,
        tasks: Sequence[ShardTask],
        broadcast: Payload,
        on_clients_end: Callable[[Sequence[ClientStats]], None],
        on_result: Callable[[int, PhaseResult], None],
    ) -> None:
        """Run all shards; ``on_result`` takes each result, whose sums may lie in the worker's block while they wait.

        ``on_clients_end`` may be told of a client more than once.
        """
        layout = lay_out(broadcast)
        write(broadcast, layout, self._broadcast)
        waiting = list(reversed(tasks))
        deaths: dict[int, int] = {}
        lost: dict[int, list[ClientError]] = {}
        num_left = len(tasks)
        while num_left:
            self._hand_out(waiting, layout)
            ready = self._ready()
            for index in ready:
                worker = self._workers[index]
                try:
                    kind, content = receive(worker.connection)
                except (EOFError, OSError):
                    waiting += self._replace_dead(index, deaths, lost, "its worker process died (killed, or out of memory?)")
                    continue
                if kind == "report":
                    on_clients_end(content)
                elif kind == "room":
                    worker.free_block()
                    with suppress(OSError):
                        send(worker.connection, None)
                elif kind == "method error":
                    raise MethodError(content)
                elif kind == "error":
                    raise RuntimeError(f"a worker could not run its shard:\n{content}")
                else:
                    result, sums, start = content
                    shard = worker.tasks.pop(0).shard
                    worker.client_id = NO_CLIENT
                    if sums is not None:
                        result.accumulator.attach(read(sums, worker.block[start:]))
                        worker.attached.append(result)
                    on_clients_end(result.stats)
                    result.failures += lost.pop(shard, [])
                    on_result(shard, result)
                    num_left -= 1
            waiting += self._replace_late(deaths, lost)
            if not ready:
                waiting += self._replace_stuck(deaths, lost)
        for worker in self._workers:
            worker.attached.clear()

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(timeout=1)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()

    def _ready(self) -> list[int]:
        connections = {worker.connection: index for index, worker in enumerate(self._workers)}
        ready = wait(list(connections), timeout=min(1.0, (self._timeout or QUIET_LIMIT) / 4))
        return [connections[connection] for connection in ready]  # type: ignore[index]

    def _replace_late(self, deaths: dict[int, int], lost: dict[int, list[ClientError]]) -> list[ShardTask]:
        """End workers whose client has run out of time; return their shards."""
        if self._timeout is None:
            return []
        late: list[ShardTask] = []
        for index, worker in enumerate(self._workers):
            client_id, now = worker.at_work, time.monotonic()
            if client_id != worker.client_id:
                worker.client_id, worker.since = client_id, now
            elif client_id != NO_CLIENT and now - worker.since > self._timeout:
                deaths[client_id] = MAX_DEATHS - 1
                late += self._replace_dead(index, deaths, lost, f"no answer within {self._timeout:g} s")
        return late

    def _replace_stuck(self, deaths: dict[int, int], lost: dict[int, list[ClientError]]) -> list[ShardTask]:
        """End workers that have a shard and have used no processor time for long; return their shards."""
        stuck: list[ShardTask] = []
        now = time.monotonic()
        for index, worker in enumerate(self._workers):
            seconds = _processor_seconds(worker.process.pid)
            if not worker.tasks or seconds > worker.processor_seconds + 0.01:
                worker.processor_seconds, worker.quiet_since = seconds, now
            elif now - worker.quiet_since > QUIET_LIMIT:
                stuck += self._replace_dead(index, deaths, lost, f"its worker process did nothing for {QUIET_LIMIT:g} s")
        return stuck

    def _replace_dead(
        self, index: int, deaths: dict[int, int], lost: dict[int, list[ClientError]], reason: str
    ) -> list[ShardTask]:
        """Start a new worker in the place of a dead one.

        Returns the shards it held, the one under way without a client that keeps killing workers; nothing if it was idle.
        """
        dead = self._workers[index]
        dead.process.kill()
        dead.process.join()
        dead.connection.close()
        dead.free_block()
        self._workers[index] = self._start(index, dead.block)
        if not dead.tasks:
            return []
        task, *others = dead.tasks
        culprit = dead.at_work
        deaths[culprit] = deaths.get(culprit, 0) + 1
        if deaths[culprit] < MAX_DEATHS:
            return dead.tasks
        failure = ClientError(task.ctx.round, task.ctx.phase, culprit, reason)
        if culprit == NO_CLIENT:
            raise failure
        lost.setdefault(task.shard, []).append(failure)
        return [replace(task, clients=[client for client in task.clients if client != culprit]), *others]

    def _hand_out(self, waiting: list[ShardTask], layout: Layout) -> None:
        """Give every worker a shard, and the next one in advance, so that none waits between two.

        A shard that does not fit into a pipe goes to an idle worker only: two ends that both send more than a pipe holds would
        block each other.
        """
        for depth in range(1, HELD_SHARDS + 1):
            for worker in self._workers:
                if waiting and len(worker.tasks) < depth and (not worker.tasks or _is_small(waiting[-1], layout)):
                    worker.tasks.append(waiting.pop())
                    with suppress(OSError):  # a dead worker shows at the next look at its connection
                        send(worker.connection, (worker.tasks[-1], layout))

    def _start(self, index: int, block: Tensor) -> _Worker:
        context: Any = multiprocessing.get_context(self._start_method)
        ours, theirs = context.Pipe()
        # A forked child holds copies of our ends of all pipes; unless it closes them, nobody notices when we die.
        inherited = [ours, *(worker.connection for worker in self._workers)] if self._start_method == "fork" else []
        device = self._devices[index % len(self._devices)]
        place = new_block(8).view(torch.int64).fill_(NO_CLIENT)
        process = context.Process(
            target=_work,
            args=(UserFiles(), self._setup, device, theirs, self._broadcast, block, place, inherited),
            daemon=True,
            name=f"worker {index}",
        )
        process.start()
        theirs.close()
        return _Worker(process, ours, block, place)


def _work(
    user_files: UserFiles,
    setup: WorkerSetup,
    device: torch.device,
    connection: Connection,
    broadcast: Tensor,
    block: Tensor,
    place: Tensor,
    inherited: list[Connection],
) -> None:
    """Run shards and send their results until the other end of the pipe closes.

    A spawned worker reads its arguments in order: ``user_files`` come first, so that what is defined there can be read.
    """
    # What a forked child inherits is the parent's to clean up: objects of Ray that are collected here crash the process.
    gc.freeze()
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    try:
        runner = ShardRunner(setup, device)
        tasks = Tasks(connection, SumsBlock(block))
        reports = Reports(connection, REPORT_SECONDS)
        while True:
            task, layout = tasks.next()
            reports.clear()
            result = runner.run(task, read(layout, broadcast), place.fill_, reports.add, tasks.room)
            place.fill_(NO_CLIENT)
            send(connection, ("done", (result, *tasks.moved(result))))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except MethodError as error:
        send(connection, ("method error", str(error)))
    except Exception:
        send(connection, ("error", traceback.format_exc()))


def _is_small(task: ShardTask, layout: Layout) -> bool:
    """Return whether a task and the layout of the broadcast surely fit into a pipe: 9 bytes a client, and 100 a tensor."""
    return not task.routed and not task.locals and 9 * len(task.clients) + 100 * len(layout.slots) <= PIPE


def _processor_seconds(pid: int) -> float:
    """Return processor time that a process has used; 0 if it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
