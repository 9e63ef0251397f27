"""Blocks of shared memory and messages between the engine and its workers."""

from __future__ import annotations

import pickle
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from unisono.core.payload import Payload
from unisono.core.wire import ALIGNMENT, Layout, lay_out
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

    def clear(self) -> None:
        """Begin anew: what lies in the block is overwritten."""
        self._used = 0

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
        """Return where the sums lie; None unless all of them lie in the block in their order."""
        layout = lay_out(sums)
        start = self._block.data_ptr()
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
        self._is_free = True

    def next(self) -> Any:
        """Return the next shard and the layout of the broadcast."""
        return self._waiting.popleft() if self._waiting else receive(self._connection)

    def room(self, tensor: Tensor) -> Tensor:
        """Return room for a sum, when the sums of the last shard have been read or copied."""
        if not self._is_free:
            send(self._connection, ("room", None))
            while (message := receive(self._connection)) is not None:
                self._waiting.append(message)
            self._sums.clear()
            self._is_free = True
        return self._sums.room(tensor)

    def moved(self, result: PhaseResult) -> Layout | None:
        """Take the sums that lie in shared memory out of a result; None, and they stay in it, where they do not."""
        layout = self._sums.layout(Payload(result.accumulator.sums))
        self._is_free = False
        if layout is None or layout.num_bytes == 0:
            return None
        result.accumulator.sums = {}
        return layout


def send(connection: Connection, message: object) -> None:
    """Send a message; a payload in it is one run of bytes."""
    connection.send_bytes(pickle.dumps(message, protocol=5))


def receive(connection: Connection) -> Any:
    """Return the next message; raise an EOFError if the other end is gone."""
    return pickle.loads(connection.recv_bytes())
