"""Small runs of several kinds."""

from __future__ import annotations

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
