"""Blocks of shared memory and messages between the engine and its workers."""

from __future__ import annotations

import pickle
import time
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from unisono.core.context import Context
from unisono.core.payload import Payload
from unisono.core.wire import ALIGNMENT, Layout, lay_out
from unisono.federation.client_turn import ClientStats
from unisono.federation.loop import PhaseResult


def new_block(num_bytes: int) -> Tensor:
    """Return shared memory for so many bytes; it is taken at once, so that a lack of it is an error here and no crash later."""
    # share_memory_() would make room elsewhere first, and copy all of it.
    storage = torch.UntypedStorage._new_shared(num_bytes, device="cpu")
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class SumsBlock:
    """A block in which the sums of a shard grow, tensor by tensor.

    Args:
        block: shared memory.
    """

    def __init__(self, block: Tensor) -> None:
        self._block = block
        self._used = 0
        self.start = 0
        """The place at which the sums of the present shard begin."""

    def clear(self) -> None:
        """Begin anew: what lies in the block is overwritten."""
        self.start = self._used = 0

    def follow(self) -> bool:
        """Begin the sums of a shard behind those of the last one; return whether as many bytes have room there."""
        num_bytes = self._used - self.start
        self.start = self._used
        return self._used + num_bytes <= len(self._block)

    def room(self, tensor: Tensor) -> Tensor:
        """Return a place in the block like a tensor; ordinary memory where the block is full."""
        num_bytes = tensor.numel() * tensor.element_size()
        end = self._used + -(-num_bytes // ALIGNMENT) * ALIGNMENT
        if num_bytes == 0 or end > len(self._block):
            return torch.empty_like(tensor, memory_format=torch.contiguous_format)
        place = self._block[self._used : self._used + num_bytes].view(tensor.dtype).view(tensor.shape)
        self._used = end
        return place

    def layout(self, sums: Payload) -> Layout | None:
        """Return where the sums lie, from ``start`` on; None unless all of them lie in the block in their order."""
        layout = lay_out(sums)
        start = self._block.data_ptr() + self.start
        for name, tensor in sums.tensors():
            slot = layout.slots[name]
            if slot.num_bytes and tensor.data_ptr() != start + slot.offset:
                return None
        return layout


class Tasks:
    """The worker's end of the pipe: shards to run, and leave to use the block of sums again."""

    def __init__(self, connection: Connection, sums: SumsBlock) -> None:
        self._connection = connection
        self._sums = sums
        self._waiting: deque[Any] = deque()
        self._ctx: Context | None = None
        self._summed: Context | None = None
        self._begins = True

    def next(self) -> Any:
        """Return the next shard and the layout of the broadcast."""
        task, layout = self._waiting.popleft() if self._waiting else receive(self._connection)
        self._ctx, self._begins = task.ctx, True
        return task, layout

    def room(self, tensor: Tensor) -> Tensor:
        """Return room for a sum: where no sums lie that have not been read or copied."""
        if self._begins:
            self._begins = False
            if self._ctx != self._summed:  # all sums of the phase before have been read
                self._sums.clear()
            elif not self._sums.follow():
                self._ask()
            self._summed = self._ctx
        return self._sums.room(tensor)

    def moved(self, result: PhaseResult) -> tuple[Layout | None, int]:
        """Take the sums that lie in shared memory out of a result; return where they lie, None where they stay in it."""
        layout = self._sums.layout(Payload(result.accumulator.sums))
        if layout is None or layout.num_bytes == 0:
            return None, 0
        result.accumulator.sums = {}
        return layout, self._sums.start

    def _ask(self) -> None:
        """Wait until the sums in the block have been read or copied, and begin it anew."""
        send(self._connection, ("room", None))
        while (message := receive(self._connection)) is not None:
            self._waiting.append(message)
        self._sums.clear()


class Reports:
    """Statistics of clients on their way to the engine while a shard is under way; all of them come with its result again.

    Args:
        connection: the worker's end of the pipe.
        seconds: the least time between two messages.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._held: list[ClientStats] = []
        self._last = time.monotonic()

    def add(self, stats: ClientStats) -> None:
        """Send what is held, and this one, unless the last message has just gone."""
        self._held.append(stats)
        if time.monotonic() - self._last >= self._seconds:
            send(self._connection, ("report", self._held))
            self.clear()

    def clear(self) -> None:
        """Drop what is held."""
        self._held = []
        self._last = time.monotonic()


def send(connection: Connection, message: object) -> None:
    """Send a message; a payload in it is one run of bytes."""
    connection.send_bytes(pickle.dumps(message, protocol=5))


def receive(connection: Connection) -> Any:
    """Return the next message; raise an EOFError if the other end is gone."""
    return pickle.loads(connection.recv_bytes())
