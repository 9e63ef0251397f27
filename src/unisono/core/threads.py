"""Threads of torch's operators: a block may have few, so that they do not wait for each other on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Run a block, or a function that this decorates, with this number of threads in torch's operators."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def at_most(number: int) -> Iterator[None]:
    """Run a block with this number of threads or fewer."""
    with threads(min(number, torch.get_num_threads())):
        yield
