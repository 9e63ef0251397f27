"""Runs on more samples than fit into memory, and on very many: memory stays bounded, probes are capped and say so.

Files are sparse, so they take no room on the disk; they are opened, mapped and read as others are.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

GIGABYTE = 10**9
SMALL = (
    "run", "simclr", "--dataset", "npz", "--clients", "10", "--rounds", "1", "--workers", "2", "--name", "a", "--quiet",
    "--set", "training.local_steps=2", "--set", "training.batch_size=8", "--set", "cohort.size=4",
    "--set", "report.enabled=false", "--set", "model.backbone=convnet", "--set", "partition.scheme=iid",
)  # fmt: skip


def _run(folder: Path, *more: str) -> int:
    """Run a command in a folder and return the peak memory of its processes in bytes, shared pages counted once."""
    process = subprocess.Popen([sys.executable, "-m", "unisono", *SMALL, *more], cwd=folder)
    peak = 0
    while process.poll() is None:
        try:
            tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            peak = max(peak, sum(part.memory_full_info().pss for part in tree))
        except psutil.Error:
            pass  # one has ended
        time.sleep(0.2)
    assert process.returncode == 0
    return peak


def _notes(folder: Path) -> str:
    return " ".join(json.loads(line)["note"] for line in (folder / "runs" / "a" / "notes.jsonl").read_text().splitlines())


@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="PSS is Linux's")
def test_20_gigabytes_take_less_than_two(tmp_path: Path) -> None:
    images = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (139_000, 3, 224, 224))
    assert images.nbytes > 20 * GIGABYTE
    images[::5000] = np.random.default_rng(0).integers(0, 256, (28, 3, 224, 224), dtype=np.uint8)
    few = (
        "--set",
        'evaluation.probes=["alignment"]',
        "--set",
        "evaluation.max_client_samples=8",
        "--set",
        "evaluation.floors=false",
    )
    peak = _run(tmp_path, "--set", "data.path=x.npy", *few)
    print(f"peak {peak / 1e6:.0f} MB")
    assert peak < 2 * GIGABYTE


@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="PSS is Linux's")
def test_a_million_images_are_probed_by_a_part(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 4, 1_000_000)
    images = (labels[:, None, None] * 60 + draw.integers(0, 60, (1_000_000, 8, 8))).astype(np.uint8)
    np.savez(tmp_path / "x.npz", x=images, y=labels)
    peak = _run(
        tmp_path, "--set", "data.path=x.npz", "--set", "data.test_fraction=0.1", "--set", 'evaluation.probes=["linear"]'
    )
    print(f"peak {peak / 1e6:.0f} MB")
    assert peak < 2 * GIGABYTE
    assert "20,000 of 900,000 training samples (evaluation.max_train_samples)" in _notes(tmp_path)
    assert "10,000 of 100,000 test samples" in _notes(tmp_path)
