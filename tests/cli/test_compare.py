from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.studies.test_comparison import make_run


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        make_run(tmp_path / f"{name}{seed}", seed, 0.6 + 0.01 * seed * step, {"method": {"name": name}})
        for step, name in enumerate(("simclr", "byol"), start=1)
        for seed in range(3)
    ]


def test_table_in_the_terminal(unisono: Command, runs: list[Path]) -> None:
    result = unisono("compare", *runs)
    assert result.code == 0, result
    assert "61.0 ± 1.0" in result.out
    assert "62.0 ± 2.0" in result.out
    assert "+1.0" in result.out
    assert "-1.5 to +3.5" in result.out  # 1 plus or minus 4.303 x 1 / sqrt(3)
    assert "undecided (could" in result.out
    assert "equal" in unisono("compare", *runs, "--margin", "9").out
    assert "The margin must be a number above 0" in unisono("compare", *runs, "--margin", "0").sentence


def test_other_formats(unisono: Command, runs: list[Path], tmp_path: Path) -> None:
    assert "| simclr | 3 | 61.0 ± 1.0 |" in unisono("compare", *runs, "--format", "markdown").out
    assert r"byol & 3 & 62.0 $\pm$ 2.0 \\" in unisono("compare", *runs, "--format", "latex").out
    assert unisono("compare", *runs, "--format", "csv").out.startswith("group,metric,mean,deviation,seeds,")
    report = json.loads(unisono("compare", *runs, "--json", "--html", tmp_path / "page.html").out)
    assert report["against"] == "simclr"
    assert report["differences"][0]["pairs"] == 3
    assert "<!DOCTYPE html>" in (tmp_path / "page.html").read_text()


def test_unfinished_runs_are_marked_in_every_format(unisono: Command, runs: list[Path]) -> None:
    (runs[5] / "status.json").unlink()
    terminal = unisono("compare", *runs).out
    assert "2 of 3 finished" in terminal
    assert "byol, seed 2 at round 2 of" in terminal
    for format in ("markdown", "latex", "csv"):
        assert "seed 2 at round 2 of" in unisono("compare", *runs, "--format", format).out, format


def test_one_seed_is_not_enough_to_say(unisono: Command, runs: list[Path]) -> None:
    assert "cannot be said" in unisono("compare", runs[0], runs[3]).out


def test_mistakes(unisono: Command, runs: list[Path]) -> None:
    assert "has a metric 'nonsense'" in unisono("compare", *runs, "--metric", "nonsense").sentence
    assert "There is no run directory" in unisono("compare", "nowhere").sentence
