"""Killed with SIGKILL at any moment and resumed, a run ends bit-identical to an undisturbed one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import unisono

SETTINGS = [
    "partition.num_clients=8",
    "cohort.size=4",
    "federation.rounds=6",
    "data.limit=240",
    "data.test_limit=60",
    "model.backbone=cfcl-cnn",
    "evaluation.probe_every=2",
    "engine.workers=2",
    "engine.device=cpu",
    "server.optimizer=fedadam",
    "server.learning_rate=0.01",
    "compression.bits=8",
    "evaluation.floors=false",
    "report.enabled=false",
]
"""With a server optimiser and client states (error feedback), so that everything a checkpoint holds is needed."""

PROGRAM = """
import sys, time, unisono
from unisono.federation.loop import Callback

class Wait(Callback):
    def on_round_end(self, state, record):
        if state.round == int(last):
            time.sleep(600)

action, directory, name, last, *settings = sys.argv[1:]
if action == "run":
    unisono.run("simclr", dataset="digits", name=name, set=[f"run.directory={directory}", *settings], callbacks=[Wait()])
else:
    unisono.resume(f"{directory}/{name}", callbacks=[Wait()])
"""
"""It waits for its end after round ``last``, so that it never comes too late."""


SPILLED = [
    "engine.state_memory_gib=1e-9", "engine.workers=0", "federation.rounds=2", "model.backbone=convnet",
    "model.options.widths=[4]", "data.limit=80", "data.test_limit=20", "partition.num_clients=4", "cohort.size=4",
]  # fmt: skip
"""States of clients go to the disk at once."""


def _command(action: str, directory: Path, name: str, last: int = 0) -> list[str]:
    return [sys.executable, "-c", PROGRAM, action, str(directory), name, str(last), *SETTINGS]


def _results(path: Path) -> dict[str, bytes]:
    names = ("metrics.jsonl", "clients.jsonl", "model/encoder.safetensors")
    return {name: (path / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("undisturbed")
    subprocess.run(_command("run", directory, "whole"), check=True, capture_output=True)
    return directory


def _start(action: str, directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        _command(action, directory, "killed", last=5), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )


def _kill_after_lines(process: subprocess.Popen[bytes], metrics: Path, num_lines: int, delay: float) -> None:
    """Kills the process and its workers some time after a round was logged."""
    while process.poll() is None:
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= num_lines:
            time.sleep(delay)
            break
        time.sleep(0.002)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_killed_twice_and_resumed(undisturbed: Path, tmp_path: Path) -> None:
    """Once beside the checkpoint, once in the next round; tests/reliability kills at every kind of write."""
    metrics = tmp_path / "killed" / "metrics.jsonl"
    _kill_after_lines(_start("run", tmp_path), metrics, 2, delay=0.0)
    assert not (tmp_path / "killed" / "model").exists()
    _kill_after_lines(_start("resume", tmp_path), metrics, 4, delay=0.05)
    subprocess.run(_command("resume", tmp_path, "killed"), check=True, capture_output=True)
    assert _results(tmp_path / "killed") == _results(undisturbed / "whole")


def test_killed_before_the_first_round(undisturbed: Path, tmp_path: Path) -> None:
    process = _start("run", tmp_path)
    while process.poll() is None and not (tmp_path / "killed" / "run_info.json").exists():
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run(_command("resume", tmp_path, "killed"), check=True, capture_output=True)
    assert _results(tmp_path / "killed") == _results(undisturbed / "whole")


def test_resuming_a_finished_run_changes_nothing(undisturbed: Path) -> None:
    before = _results(undisturbed / "whole")
    subprocess.run(_command("resume", undisturbed, "whole"), check=True, capture_output=True)
    assert _results(undisturbed / "whole") == before


@pytest.mark.parametrize("removal", ["unlink", "rmdir"])
def test_a_finished_run_leaves_nothing_that_a_disk_refused_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removal: str
) -> None:
    refused = []

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == ".states.tmp" or path.suffix == ".state":
            refused.append(path)
            raise OSError(5, "Input/output error", str(path))
        good(path, **({"missing_ok": missing_ok} if removal == "unlink" else {}))

    good = getattr(Path, removal)
    monkeypatch.setattr(Path, removal, refuse)
    unisono.run("simclr", dataset="digits", name="r", set=[f"run.directory={tmp_path}", *SETTINGS, *SPILLED])
    assert refused
    assert list((tmp_path / "r").rglob(".*.tmp")) == []
