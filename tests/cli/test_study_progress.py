from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.studies.conftest import SMALL
from tests.studies.test_history import write_run
from unisono.cli.study_progress import Pace, StudyProgress
from unisono.core.payload import Payload
from unisono.federation.loop import RoundRecord, ServerState
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
    assert [cell.variant for cell in cells] == [UNTRAINED, "SimCLR", "Orchestra"] * 2
    assert Pace(cells).seconds_left() is None
    finish(cells[1], 5)  # SimCLR: 10 seconds
    pace = Pace(cells)
    assert pace.seconds_left() == pytest.approx(3 * 10), "nothing is known about Orchestra yet; an encoder is probed at once"
    pace.finish(cells[2], 40.0)  # Orchestra
    pace.finish(cells[0], 1.0)
    rest = 10 + 40  # an end that was not logged is as long as that of the run which is known whole
    assert pace.seconds_left() == pytest.approx(1 + rest + 40)
    assert pace.seconds_left(cells[5], 15.0) == pytest.approx(1 + rest + 15)
    pace.finish(cells[5], None)
    assert pace.seconds_left() == pytest.approx(1 + rest), "a failure says nothing about the time of others"


def test_the_time_that_passed_counts_and_not_that_of_rounds(cells: list[Cell]) -> None:
    pace = Pace(cells[1::3])
    finish(cells[1], 2)
    assert pace.seconds_left() == pytest.approx(4), "made by another process: its logs are all that is known"
    pace.finish(cells[1], 11.0)
    assert pace.seconds_left() == pytest.approx(11)
    pace.finish(cells[1], 1.0)
    assert pace.seconds_left() == pytest.approx(4), "the last rounds after a checkpoint are not the whole run"


def test_untrained_cells_say_nothing_about_others(cells: list[Cell]) -> None:
    finish(cells[0], 0)
    pace = Pace(cells)
    assert pace.seconds_left() is None, "an encoder that was probed earlier does not mean that training takes no time"
    pace.finish(cells[0], 2.0)
    pace.finish(cells[1], 30.0)
    assert pace.seconds_left() == pytest.approx(2 + 3 * 30)


def test_jobs_share_whole_runs(cells: list[Cell]) -> None:
    def left(number: int, jobs: int, **current: Any) -> float | None:
        pace = Pace(trained, jobs)
        pace.finish(trained[0], 10.0)
        pace._left = pace._left[:number]
        return pace.seconds_left(**current)

    trained = [cell for cell in cells if not cell.untrained]
    assert left(3, 1) == pytest.approx(30)
    assert left(3, 2) == pytest.approx(20), "the third waits for one of the others"
    assert left(2, 2) == pytest.approx(10)
    assert left(1, 4) == pytest.approx(10), "a run is not faster because nothing else is left"
    assert left(2, 2, current=trained[1], current_left=1.0) == pytest.approx(10)
    write_run(trained[1].path, [0.5] * 3)
    assert left(1, 2) == pytest.approx(10 - 6), "a helper has six seconds of it behind it"


def test_a_line_per_run_outside_of_a_terminal(cells: list[Cell], tmp_path: Path) -> None:
    (tmp_path / "linear.toml").write_text(re.sub("metrics = .*", 'metrics = ["linear"]', SMALL))
    study = read_study(tmp_path / "linear.toml")
    text = io.StringIO()
    after: list[tuple[str, str]] = []
    console = Console(file=text, width=200)
    progress = StudyProgress(cells[:3], study, console, after=lambda cell, reason: after.append((cell.variant, reason)))
    with progress:
        (callback,) = progress.on_cell_start(cells[1], cells[1].config())
        callback.on_round_start(0, 4)
        callback.on_round_end(ServerState(1, Payload()), RoundRecord(0))
        finish(cells[1], 1)
        progress.on_cell_end(cells[1], 65.0)
        progress.on_cell_failure(cells[2], "it\nbroke")
    first, second = text.getvalue().splitlines()
    assert first == "[1/3] SimCLR, alpha 0.1, seed 0: linear 50.0  in 0:01:05, 0:02:08 left"
    assert second == "[2/3] Orchestra, alpha 0.1, seed 0: failed: it broke, 0:01:03 left"
    assert after == [("SimCLR", ""), ("Orchestra", "it\nbroke")]


def test_the_end_of_a_run_names_no_metric_that_depends_on_other_runs(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL.replace('metrics = ["knn"', 'metrics = ["steps to 50% of knn", "knn"'))
    study = read_study(tmp_path / "small.toml")
    assert "steps to 50% of knn" in study.config.metrics
    cells = make_cells(study, tmp_path / "runs", seeds=[0])
    text = io.StringIO()
    progress = StudyProgress(cells[:3], study, Console(file=text, width=200), after=lambda cell, reason: None)
    finish(cells[1], 3)
    progress.on_cell_end(cells[1], 6.0)
    assert "SimCLR" in text.getvalue()
    assert "steps to" not in text.getvalue()
