from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.studies.conftest import SMALL
from unisono.cli.study_rehearsal import spoken


def test_a_rehearsal_shows_every_cell_and_the_sum(unisono: Command, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    result = unisono("study", "small.toml", "--rehearse", "--only", "SimCLR", "--only", "alpha 10")
    assert result.code == 0, result
    assert "[1/1] SimCLR, alpha 10: runs, " in result.out
    assert "1 cell, 2 runs: about " in result.out
    assert re.search(r"^SimCLR, alpha 10 +real +\d+ +\d+ ms +[\d.]+ GB +\d+ s +2$", result.out, re.M), "a line of its own"
    assert not (tmp_path / "runs").exists(), "nothing is written"


def test_a_cell_that_cannot_run_ends_with_1_and_a_sentence(unisono: Command, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL.replace("method.projection_dim=16", "method.projection_dim=0"))
    result = unisono("study", "small.toml", "--rehearse", "--only", "Orchestra", "--only", "alpha 10", "--json")
    assert result.code == 1
    found = json.loads(result.out)
    assert found["runs"] == 2
    (cell,) = found["cells"]
    assert (cell["variant"], cell["runs"]) == ("Orchestra", False)
    assert cell["reason"].startswith("method.projection_dim")
    shown = unisono("study", "small.toml", "--rehearse", "--only", "Orchestra", "--only", "alpha 10")
    assert "Does not run: Orchestra, alpha 10: method.projection_dim" in shown.out
    assert "Traceback" not in shown.out + shown.err


def test_rehearse_or_dry_run(unisono: Command, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    assert "give one of the two" in unisono("study", "small.toml", "--rehearse", "--dry-run").sentence


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"),
        (42, "42 s"),
        (100, "2 min"),
        (3590, "60 min"),
        (12_000, "3 h 20 min"),
        (3600 * 30.2, "30 h"),
        (86_400 * 41, "41 days"),
        (86_400 * 4100, "4,100 days"),
    ],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert spoken(seconds) == words
