"""``flwr run .``: the project as a Flower app, by Flower's own command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

import unisono
from unisono.engines.flower.environment import ENVIRONMENT

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent
SETTINGS = ("partition.num_clients=3", "cohort.size=2", "federation.rounds=1", "run.name=app", "report.enabled=false")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower"), pytest.mark.timeout(300)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Flower's directory; whatever Flower has left running for it is ended."""
    path = tmp_path / "flower"
    path.mkdir()
    yield path
    left = [process for process in psutil.process_iter() if _flower_home(process) == str(path)]
    for process in left:
        process.kill()
    assert psutil.wait_procs(left, timeout=300)[1] == []


def test_it_has_the_bits_of_the_embedded_engine(home: Path, tmp_path: Path) -> None:
    settings = " ".join((*SETTINGS, f"run.directory={tmp_path}"))
    command = (
        SCRIPTS / "flwr", "run", ROOT, "local", "--stream",
        "--federation-config", "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=2",
        "--run-config", f'recipe="digits-smoke" settings="{settings}"',
    )  # fmt: skip
    path = os.pathsep.join((str(SCRIPTS), os.environ["PATH"]))  # where Flower looks for its own programs
    environment = {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(home), "PATH": path}
    done = subprocess.run(command, check=False, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    found = unisono.load(tmp_path / "app").server.flatten()
    embedded = unisono.run("digits-smoke", set=[*SETTINGS, f"run.directory={tmp_path / 'embedded'}", "engine.workers=0"])
    expected = embedded.server.flatten()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def _flower_home(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("FLWR_HOME")
    except psutil.Error:
        return None
