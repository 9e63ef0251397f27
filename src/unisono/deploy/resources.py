"""Resources that the machine of a client gives, ``[resources]``: hours, load, time, memory, disk."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from unisono.deploy.policy_tables import HOURS, ResourcesTable, num_bytes
from unisono.deploy.refusal import NOT_NOW, RefusedError


def check_time(resources: ResourcesTable, now: datetime | None = None, load: float | None = None) -> None:
    """Refuse work outside of the owner's hours, or while the machine is busy; the server does not wait for it.

    Args:
        resources: the owner's.
        now: local time; the present where None.
        load: load average per core of the last minute; measured where None.
    """
    now = now or datetime.now()
    found = HOURS.fullmatch(resources.hours)
    if found is not None:
        start, end = (now.replace(hour=int(found[i]), minute=int(found[i + 1]), second=0, microsecond=0) for i in (1, 3))
        inside = start <= now < end if start < end else now >= start or now < end
        if not inside:
            start += timedelta(days=1) if start <= now else timedelta()
            minutes = (start - now).total_seconds() / 60
            raise RefusedError(f"this client works from {resources.hours}, in {minutes:.0f} minutes again.", code=NOT_NOW)
    if resources.max_load is not None:
        load = os.getloadavg()[0] / (os.cpu_count() or 1) if load is None else load
        if load >= resources.max_load:
            raise RefusedError("this client works only while its machine is idle, in 5 minutes again.", code=NOT_NOW)


class _TooLong(BaseException):
    """Raised in a thread whose time is over; no ordinary handler catches it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Refuse to go on after so many seconds: between two steps of Python, so that one operation of torch ends first."""
    thread, lock, state = threading.get_ident(), threading.Lock(), {"over": False, "done": False}

    def stop() -> None:
        with lock:
            if not state["done"]:
                state["over"] = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TooLong))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
        with lock:
            state["done"] = True
        for _ in range(100 * state["over"]):  # an exception that is on its way arrives here
            pass
    except _TooLong:
        raise RefusedError(
            f"resources.max_seconds_per_round is {seconds:g}, and this took longer.", "resources.max_seconds_per_round"
        ) from None
    finally:
        timer.cancel()
        with lock:
            state["done"] = True


def limit_memory(resources: ResourcesTable) -> None:
    """Let the operating system refuse this process more address space than its owner gives."""
    if resources.max_memory is not None:
        most = num_bytes(resources.max_memory)
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def keep_states(states: Path, current: Path, resources: ResourcesTable) -> None:
    """Remove the local states of the oldest runs, and refuse if the others still take more disk than allowed.

    Args:
        states: holds one directory per run.
        current: the one that stays.
        resources: the owner's.
    """
    others = sorted((path for path in states.iterdir() if path.is_dir() and path != current), key=lambda p: p.stat().st_mtime)
    for path in others[: max(0, len(others) + 1 - resources.keep_runs)]:
        shutil.rmtree(path, ignore_errors=True)
    used = sum(file.stat().st_size for file in states.rglob("*") if file.is_file())
    if used > num_bytes(resources.max_state):
        raise RefusedError(f"resources.max_state is {resources.max_state}, and {used} bytes are used.", "resources.max_state")
