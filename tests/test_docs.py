"""The documentation's code runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import unisono

ROOT = Path(__file__).parents[1]


def _blocks(document: str, language: str) -> list[str]:
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_worked_example_of_a_method_runs(tmp_path: Path) -> None:
    source = _blocks("adding-a-method.md", "python")[0]
    command = _blocks("adding-a-method.md", "sh")[0].split()
    (tmp_path / "barlow_twins.py").write_text(source)
    assert command[:2] == ["unisono", "run"]
    quick = ["--name", "doc", "--set", "data.limit=200", "--set", "model.backbone=cfcl-cnn"]
    program = str(Path(sys.executable).with_name("unisono"))
    finished = subprocess.run([program, *command[1:], *quick], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    run = unisono.load(tmp_path / "runs" / "doc")
    assert run.round == 5
    assert "on_diagonal" in run.metrics[-1]


@pytest.mark.parametrize("document", ["quick-start.md", "own-images.md"])
def test_tutorials_run_word_for_word(document: str, tmp_path: Path) -> None:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path}
    snippets = [[sys.executable, "-c", code] for code in _blocks(document, "python")]
    commands = [["bash", "-ec", block] for block in _blocks(document, "sh") if not block.startswith("make")]
    for command in (*snippets, *commands):
        finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr
    assert list((tmp_path / "runs").iterdir())
