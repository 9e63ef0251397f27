from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from tests.studies.conftest import SMALL
from tests.studies.test_history import write_run
from unisono.cli.study_progress import Pace, StudyProgress
from unisono.core.payload import Payload
from unisono.federation.rounds import RoundRecord, State
from unisono.studies.grid import Cell, make_cells
from unisono.studies.study import UNTRAINED, read_study


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    """Untrained, SimCLR and Orchestra under two settings."""
    (tmp_path / "small.toml").write_text(SMALL)
    return make_cells(read_study(tmp_path / "small.toml"), tmp_path / "runs", seeds=[0])


def finish(cell: Cell, num_rounds: int) -> None:
    """A finished run of two seconds a round."""
    write_run(cell.path, [0.5] * num_rounds)
    (cell.path / "config.toml").write_text("")
    (cell.path / "status.json").write_text('{"status": "finished"}')


def test_runs_take_as_long_as_those_of_their_variant(cells: list[Cell]) -> None:
    assert Pace(cells).seconds_left() is None
    finish(cells[1], 5)  # SimCLR: 10 seconds
    pace = Pace(cells)
    assert pace.seconds_left() == pytest.approx(5 * 10), "nothing is known about the others yet"
    pace.finish(cells[2], 40.0)  # Orchestra
    pace.finish(cells[0], 1.0)
    assert [cell.variant for cell in cells[3:]] == [UNTRAINED, "SimCLR", "Orchestra"]
    assert pace.seconds_left() == pytest.approx(1 + 10 + 40)
    assert pace.seconds_left(cells[5], 15.0) == pytest.approx(1 + 10 + 15)
    pace.finish(cells[5], None)
    assert pace.seconds_left() == pytest.approx(1 + 10), "a failure says nothing about the time of others"


def test_a_line_per_run_outside_of_a_terminal(cells: list[Cell], tmp_path: Path) -> None:
    (tmp_path / "linear.toml").write_text(re.sub("metrics = .*", 'metrics = ["linear"]', SMALL))
    study = read_study(tmp_path / "linear.toml")
    text = io.StringIO()
    after: list[tuple[str, str]] = []
    console = Console(file=text, width=200)
    progress = StudyProgress(cells[:3], study, console, after=lambda cell, reason: after.append((cell.variant, reason)))
    with progress:
        (observer,) = progress.on_cell_start(cells[1], cells[1].config())
        observer.on_round_start(0, 4)
        observer.on_round_end(State(1, Payload()), RoundRecord(0))
        finish(cells[1], 1)
        progress.on_cell_end(cells[1], 65.0)
        progress.on_cell_failure(cells[2], "it\nbroke")
    first, second = text.getvalue().splitlines()
    assert first == "[1/3] SimCLR, alpha 0.1, seed 0: linear 50.0  in 0:01:05, 0:02:10 left"
    assert second == "[2/3] Orchestra, alpha 0.1, seed 0: failed: it broke, 0:01:05 left"
    assert after == [("SimCLR", ""), ("Orchestra", "it\nbroke")]
