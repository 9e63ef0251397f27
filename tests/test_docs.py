"""The documentation's code runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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
