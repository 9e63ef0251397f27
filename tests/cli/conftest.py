"""The command line in this process, and one small finished run that tests may copy."""

from __future__ import annotations

import math
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from unisono.cli.main import main
from unisono.core.work_progress import WorkProgress

SMALL = (
    "digits-smoke", "--workers", "0", "--rounds", "2", "--set", "evaluation.probe_every=1",
    "--set", "data.limit=160", "--set", "data.test_limit=50",
)  # fmt: skip
"""Half a second of training in this process."""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The message of a user error; there is nothing else on stderr, and no traceback."""
        assert self.code == 2, self
        assert self.err.startswith("error: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("error: ").strip()


Command = Callable[..., Result]


@pytest.fixture
def unisono(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs a command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(WorkProgress.__init__, "__defaults__", (math.inf,))  # a busy machine would show how far work is

    def call(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(int(end.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; do not write into it."""
    root = tmp_path_factory.mktemp("finished")
    with pytest.raises(SystemExit) as end:
        main(["run", *SMALL, "--name", "demo", "--quiet", "--set", f"run.directory={root}"])
    assert not end.value.code
    return root / "demo"


@pytest.fixture
def demo(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, as runs/demo of the current directory."""
    shutil.copytree(finished, tmp_path / "runs" / "demo")
    return Path("runs") / "demo"


def hear_ctrl_c() -> None:
    """For a process that is to be stopped by Ctrl-C: one in the background inherits that it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
