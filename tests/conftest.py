from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: forks of a process with a pool of threads hang
# Tests neither read nor fill the user's cache; all processes of a run of the tests share one.
os.environ.setdefault("UNISONO_CACHE", str(Path(tempfile.gettempdir()) / f"unisono-tests-{os.getuid()}"))
settings.register_profile("untimed", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def logs_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line turns logs off for its whole process, which other tests share."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)


@pytest.fixture(scope="module")
def few_prototype_steps() -> Iterator[None]:
    """Orchestra's server takes 20 steps instead of 500, for tests that ask for nothing but the same or other bits."""
    from unisono.clustering.prototypes import prototype_clustering

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unisono.methods.orchestra.prototype_clustering", partial(prototype_clustering, num_steps=20))
        yield


@dataclass(frozen=True)
class Seen:
    """What a browser made of a page: its elements after all scripts, and the messages of its console."""

    dom: str
    console: list[str]


Browser = Callable[..., Seen]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """Chromium without a window."""
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
