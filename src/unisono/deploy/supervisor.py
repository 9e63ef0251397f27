"""Supervision of processes: restart them when they end, end them all on request."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from unisono.core.errors import UserError

PID_FILE = "supervisor.pid"
LONGEST_PAUSE = 20.0
LOG_BYTES, LOG_FILES = 50 * 2**20, 5
CALM = 60.0
"""Seconds after which a process that ends is restarted without delay."""


@dataclass(frozen=True)
class Task:
    """A process to keep going.

    Args:
        name: of its log file.
        command: what to run.
        environment: on top of this process's.
        follows: a task at whose end this one is ended and started again too.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    follows: str | None = None


@dataclass
class _Running:
    task: Task
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    pause: float = 1.0
    again_at: float = 0.0


def supervise(directory: Path, tasks: Sequence[Task], on_start: Callable[[], None] = lambda: None) -> None:
    """Run tasks in groups of their own until this process gets SIGTERM or SIGINT; their output goes to ``logs/``.

    SIGHUP ends all tasks and starts them again.

    Args:
        directory: its ``supervisor.pid`` names this process as long as it runs.
        tasks: started in order, ended in reverse.
        on_start: called once, in a thread, after all tasks have been started.
    """
    if (other := supervisor_pid(directory)) is not None:
        raise UserError(f"Process {other} runs in {directory} already: stop it with 'unisono deploy stop {directory}'.")
    logs = directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (directory / PID_FILE).write_text(f"{os.getpid()}\n{psutil.Process().create_time()}\n")
    stopping = restarting = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping, restarting
        stopping, restarting = stopping or number != signal.SIGHUP, restarting or number == signal.SIGHUP

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    running = [_Running(task) for task in tasks]
    with contextlib.ExitStack() as stack:
        files = {task.name: stack.enter_context((logs / f"{task.name}.log").open("ab")) for task in tasks}
        try:
            for entry in running:
                _start(entry, files[entry.task.name])
            threading.Thread(target=on_start, name="after the start", daemon=True).start()
            while not stopping:
                if restarting:
                    restarting = False
                    for entry in reversed(running):
                        _end(entry)
                for entry in running:
                    if _look_after(entry, files[entry.task.name]):
                        for follower in running:
                            if follower.task.follows == entry.task.name:
                                _end(follower)
                time.sleep(0.2)
        finally:
            for entry in reversed(running):
                _end(entry)
            (directory / PID_FILE).unlink(missing_ok=True)
            for number, handler in before.items():
                signal.signal(number, handler)


def rotate_log(path: Path, most: int = LOG_BYTES, keep: int = LOG_FILES) -> None:
    """Begin a log anew once it is large, and keep the last ones; processes go on writing to the same file.

    Args:
        path: opened for appending by whoever writes, so that its writes follow the new end.
        most: bytes.
        keep: number of earlier logs, ``NAME.1`` the newest.
    """
    if not path.is_file() or path.stat().st_size <= most:
        return
    for number in range(keep - 1, 0, -1):
        if (older := path.with_name(f"{path.name}.{number}")).is_file():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    shutil.copyfile(path, path.with_name(f"{path.name}.1"))
    os.truncate(path, 0)


def supervisor_pid(directory: Path) -> int | None:
    """Return the process that looks after this directory, None if there is none."""
    try:
        pid, created = (directory / PID_FILE).read_text().split()
        process = psutil.Process(int(pid))
        is_it = abs(process.create_time() - float(created)) < 1 and process.status() != psutil.STATUS_ZOMBIE
        return process.pid if is_it else None
    except (OSError, ValueError, psutil.Error):
        return None


def restart_tasks(directory: Path) -> bool:
    """Have the processes of a directory read their files anew; return False if nothing runs there."""
    pid = supervisor_pid(directory)
    if pid is None:
        return False
    os.kill(pid, signal.SIGHUP)
    return True


def stop_supervisor(directory: Path, seconds: float = 30.0) -> bool:
    """End what runs in a directory, and wait for it; False if nothing ran."""
    pid = supervisor_pid(directory)
    if pid is None:
        return False
    process = psutil.Process(pid)
    process.terminate()
    deadline = time.monotonic() + seconds
    while supervisor_pid(directory) is not None:
        if time.monotonic() > deadline:
            raise UserError(f"Process {pid} in {directory} did not end within {seconds:g} s: end it by hand.")
        time.sleep(0.1)
    return True


def _start(entry: _Running, log: IO[bytes]) -> None:
    entry.process = subprocess.Popen(
        list(entry.task.command),
        env={**os.environ, **entry.task.environment},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    entry.started = time.monotonic()


def _look_after(entry: _Running, log: IO[bytes]) -> bool:
    """Restart a process that has ended, later each time it ends soon; return whether it has just ended."""
    now = time.monotonic()
    with contextlib.suppress(OSError):  # on a full disk the processes matter more than their logs
        rotate_log(Path(log.name))
    if entry.process is not None:
        if entry.process.poll() is None:
            return False
        _end(entry)
        entry.pause = 1.0 if now - entry.started > CALM else min(2 * entry.pause, LONGEST_PAUSE)
        entry.again_at = now + entry.pause
        return True
    if now >= entry.again_at:
        _start(entry, log)
    return False


def _end(entry: _Running, seconds: float = 10.0) -> None:
    """End a process and whatever it has started in its group."""
    if entry.process is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(entry.process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        entry.process.wait(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(entry.process.pid, signal.SIGKILL)
    entry.process.wait()
    entry.process = None
