"""``unisono run --engine flower``: the note, the bits of the embedded engine, resume, and errors."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import unisono

pytest.importorskip("ray")
pytest.importorskip("flwr")

SETTINGS = ("partition.num_clients=3", "cohort.size=2", "federation.rounds=2", "report.enabled=false")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower"), pytest.mark.timeout(300)]


def command(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "unisono", *words], cwd=path, capture_output=True, text=True, check=False, timeout=800
    )


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return dict(unisono.load(path).server.flatten())


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_says_what_it_stands_on_and_has_the_bits_of_the_embedded_engine(tmp_path: Path) -> None:
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    done = command(tmp_path, "run", "digits-smoke", "--engine", "flower", "--name", "a", *sets)
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("run_simulation, which Flower calls deprecated") == 1
    assert "round 2/2" in done.stdout
    found = tensors(tmp_path / "runs" / "a")
    unisono.run("digits-smoke", set=[*SETTINGS, f"run.directory={tmp_path}", "run.name=embedded", "engine.workers=0"])
    assert same(found, tensors(tmp_path / "embedded"))

    shutil.rmtree(tmp_path / "runs" / "a" / "checkpoints" / "round-000002")
    done = command(tmp_path, "resume", "runs/a")
    assert done.returncode == 0, done.stderr
    assert "Continuing after round 1 of 2" in done.stdout
    assert same(found, tensors(tmp_path / "runs" / "a"))


def test_a_client_that_fails_stops_the_run_with_a_sentence(tmp_path: Path) -> None:
    sets = [word for setting in (*SETTINGS, "training.learning_rate=1e30") for word in ("--set", setting)]
    done = command(tmp_path, "run", "digits-smoke", "--engine", "flower", "--name", "b", *sets)
    assert done.returncode == 2
    assert "client" in done.stderr
    assert "Traceback" not in done.stderr
