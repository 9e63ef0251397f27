"""Small runs of several kinds, and a browser without a window."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unisono
from unisono.core.errors import UserError

SMALL = [
    "data.limit=120",
    "data.test_limit=60",
    "partition.num_clients=6",
    "cohort.size=3",
    "federation.rounds=3",
    "model.backbone=cfcl-cnn",
    "training.local_epochs=1",
    "evaluation.probe_every=2",
    "method.projection_dim=16",
]


def small_run(directory: Path, *settings: str, method: str = "simclr", **flags: Any) -> Path:
    flags = {"dataset": "digits", "workers": 0, "name": "x", **flags}
    return unisono.run(method, set=[f"run.directory={directory}", *SMALL, *settings], **flags).path


@pytest.fixture(scope="session")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a method that clusters; do not write into it."""
    return small_run(tmp_path_factory.mktemp("clustered"), "method.num_global_clusters=8", method="orchestra")


@pytest.fixture(scope="session")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on series without labels; do not write into it."""
    root = tmp_path_factory.mktemp("series")
    np.savez(root / "waves.npz", x=np.random.default_rng(0).normal(size=(60, 2, 32)).astype(np.float32))
    settings = [f"data.path={root / 'waves.npz'}", "partition.scheme=iid", "model.backbone=resnet1d", "model.width=0.125"]
    return small_run(root, *settings, dataset="npz")


@pytest.fixture(scope="session")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose first client fails; do not write into it."""
    root = tmp_path_factory.mktemp("failed")
    with pytest.raises(UserError, match="lower the learning rate"):
        small_run(root, "training.learning_rate=1e30")
    return root / "x"


@dataclass(frozen=True)
class Seen:
    """What a browser made of a page: its elements after all scripts, and the messages of its console."""

    dom: str
    console: list[str]


Browser = Callable[..., Seen]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("there is no Chromium to draw pages with")
    profile = tmp_path_factory.mktemp("profile")

    def look(page: str, *, width: int = 1280, seconds: int = 4) -> Seen:
        command = [
            program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--enable-logging=stderr",
            "--v=0", f"--virtual-time-budget={seconds}000", f"--window-size={width},2000", "--dump-dom", page,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        return Seen(done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line])

    return look
