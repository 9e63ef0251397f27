"""Blocks of shared memory between the engine and its workers."""

from __future__ import annotations

import torch
from torch import Tensor

from unisono.core.payload import Payload
from unisono.core.wire import ALIGNMENT, Layout, lay_out


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
