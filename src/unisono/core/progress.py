"""Progress of long work, told to whoever listens: reading, embedding, drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is; the last call of a piece of work has both equal."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell this listener about all work inside the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(what: str, done: int, total: int) -> None:
    """Tell the listener, if there is one, how far work has come."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)
