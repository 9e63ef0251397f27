"""Continuing a run, whatever happened to it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.cli.conftest import Command
from unisono import load

LIMITED = (
    "import resource, signal, sys; from unisono.cli.main import main\n"
    "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)\n"
    "main(sys.argv[2:])"
)


def interrupted(run: Path) -> Path:
    """The run as it was after its first round."""
    shutil.rmtree(run / "checkpoints" / "round-000002")
    (run / "status.json").unlink()
    return run


def test_a_resumed_run_ends_with_the_same_bits(unisono: Command, demo: Path) -> None:
    model, metrics = (demo / "model" / "encoder.safetensors").read_bytes(), (demo / "metrics.jsonl").read_bytes()
    shutil.rmtree(interrupted(demo) / "model")
    result = unisono("resume", demo)
    assert result.code == 0
    assert "Continuing after round 1 of 2." in result.out
    assert "round 2/2" in result.out
    assert (demo / "model" / "encoder.safetensors").read_bytes() == model
    assert (demo / "metrics.jsonl").read_bytes() == metrics


def test_other_data_are_refused(unisono: Command, tmp_path: Path) -> None:
    """Also where the file has the same name, size and shape."""
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=images)
    quick = (
        "--clients",
        3,
        "--set",
        "training.local_epochs=1",
        "--set",
        "report.enabled=false",
        "--workers",
        0,
        "--rounds",
        2,
        "--quiet",
    )
    assert unisono("run", "simclr", "--dataset", "npz", "--set", "data.path=x.npz", *quick, "--name", "a").code == 0
    interrupted(tmp_path / "runs" / "a")
    images[7, 0, 0] ^= 1
    np.savez(tmp_path / "x.npz", x=images)
    assert "The data set is not the one that runs/a was started with" in unisono("resume", "runs/a").sentence
    images[7, 0, 0] ^= 1
    np.savez(tmp_path / "x.npz", x=images)
    assert unisono("resume", "runs/a").code == 0


def test_a_finished_run_is_said_to_be_finished(unisono: Command, demo: Path) -> None:
    result = unisono("resume", demo)
    assert result.code == 0
    assert "finished already" in result.out


def test_a_truncated_checkpoint_is_passed_over(unisono: Command, demo: Path) -> None:
    newest = demo / "checkpoints" / "round-000002" / "server.safetensors"
    expected = newest.read_bytes()
    newest.write_bytes(expected[:1000])
    assert "interrupted" not in unisono("show", demo).out
    result = unisono("resume", demo)
    assert result.code == 0
    assert "note: checkpoint round-000002 is damaged" in result.out
    assert "falling back to the one before" in result.out
    assert newest.read_bytes() == expected


def test_a_full_disk_loses_nothing(unisono: Command, demo: Path) -> None:
    interrupted(demo)
    command = [sys.executable, "-B", "-c", LIMITED, "100000", "resume", str(demo)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    expected = "error: runs/demo/checkpoints/round-000002 cannot be written: File too large"
    assert done.stderr.startswith(expected), done.stderr
    assert done.stderr.count("\n") == 1
    assert load(demo).round == 1
    assert unisono("resume", demo).code == 0
    assert load(demo).round == 2


def test_a_directory_without_config_is_no_run(unisono: Command, demo: Path) -> None:
    (demo / "config.toml").unlink()
    for command in ("resume", "show", "evaluate", "export"):
        assert unisono(command, demo).sentence == "runs/demo is not a run directory: it has no config.toml."


def test_a_run_at_work_is_left_alone(unisono: Command, demo: Path) -> None:
    from unisono.runs.directory import RunDirectory

    metrics = (interrupted(demo) / "metrics.jsonl").read_bytes()
    directory = RunDirectory.open(demo)
    directory.lock()
    try:
        assert "Another process is working in runs/demo" in unisono("resume", demo).sentence
        assert "running, 2 of 2 rounds done" in unisono("show", demo).out
    finally:
        directory.unlock()
    assert (demo / "metrics.jsonl").read_bytes() == metrics
