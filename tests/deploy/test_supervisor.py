"""Processes are started again when they end, and all end together."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from unisono.core.errors import UserError
from unisono.deploy import supervisor
from unisono.deploy.supervisor import rotate_log, stop_supervisor, supervisor_pid

SCRIPT = """
import sys
from pathlib import Path
from unisono.deploy.supervisor import Task, supervise
child = "import os, time; open('born', 'a').write(f'{os.getpid()}\\\\n'); time.sleep(600)"
grandchild = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
supervise(Path(sys.argv[1]), [Task("one", [sys.executable, "-c", grandchild], {})])
"""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def born(path: Path) -> list[int]:
    file = path / "born"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def test_a_killed_process_comes_back_and_stop_ends_all_of_it(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=tmp_path)
    try:
        wait_for(lambda: len(born(tmp_path)) == 1)
        assert supervisor_pid(tmp_path) == process.pid
        parent = psutil.Process(born(tmp_path)[0]).parent()
        assert parent is not None
        os.kill(parent.pid, signal.SIGKILL)
        wait_for(lambda: len(born(tmp_path)) == 2)
        again = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert f"Process {process.pid} runs in" in again.stderr
        assert stop_supervisor(tmp_path)
        process.wait(10)
        wait_for(lambda: not any(psutil.pid_exists(pid) for pid in born(tmp_path)))
        assert not stop_supervisor(tmp_path)
    finally:
        process.kill()
        process.wait()


def test_a_pid_file_of_a_process_that_is_gone_or_another_one_means_nothing(tmp_path: Path) -> None:
    (tmp_path / "supervisor.pid").write_text(f"{os.getpid()}\n12.5\n")
    assert supervisor_pid(tmp_path) is None
    (tmp_path / "supervisor.pid").write_text("garbage")
    assert supervisor_pid(tmp_path) is None


def test_a_port_that_is_taken_is_said_to_be() -> None:
    pytest.importorskip("flwr")
    import socket

    from unisono.deploy.processes import check_port_is_free

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match=r"cannot be used .*: set another port in server\.toml"):
            check_port_is_free("127.0.0.1", taken.getsockname()[1], "port in server.toml")


def test_a_disk_without_room_for_an_old_log_ends_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(supervisor, "rotate_log", full)
    entry = supervisor._Running(supervisor.Task("one", [sys.executable, "-c", "input()"], {}))
    with (tmp_path / "one.log").open("wb") as log:
        assert not supervisor._look_after(entry, log)
        assert entry.process is not None
        supervisor._end(entry)


def test_a_large_log_begins_anew_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "one.log"
    with path.open("ab", buffering=0) as log:
        for number in range(8):
            log.write(f"{number}{'x' * 20}".encode())
            rotate_log(path, most=10, keep=3)
        log.write(b"last")
    assert path.read_bytes() == b"last"
    assert [(tmp_path / f"one.log.{number}").read_text()[0] for number in (1, 2, 3)] == ["7", "6", "5"]
    assert len(list(tmp_path.iterdir())) == 4
