from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.studies.conftest import SMALL
from unisono.config import Config
from unisono.core.errors import UserError
from unisono.core.threads import threads
from unisono.experiment import Experiment
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.loaded import LoadedRun
from unisono.report.status import run_status
from unisono.running import resume
from unisono.runs.directory import RunDirectory
from unisono.studies import runner
from unisono.studies.grid import Cell, make_cells
from unisono.studies.runner import CellStatus, StudyCallback, check_same, run_cells, status_of
from unisono.studies.study import UNTRAINED, read_study


class Log(StudyCallback):
    def __init__(self, stop_after: int | None = None) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self.failed: dict[str, str] = {}
        self._stop_after = stop_after

    def on_cell_start(self, cell: Cell, config: Config) -> Sequence[Callback]:
        self.started.append(cell.variant)
        return () if self._stop_after is None else (Stop(self._stop_after),)

    def on_cell_end(self, cell: Cell, seconds: float) -> None:
        self.ended.append(cell.variant)

    def on_cell_failure(self, cell: Cell, reason: str) -> None:
        self.failed[cell.variant] = reason


class Stop(Callback):
    def __init__(self, round: int) -> None:
        self._round = round

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        if state.round == self._round:
            raise KeyboardInterrupt


def cells_of(tmp_path: Path, text: str = SMALL) -> list[Cell]:
    (tmp_path / "small.toml").write_text(text)
    cells = make_cells(read_study(tmp_path / "small.toml"), tmp_path / "runs", seeds=[0])
    return [cell for cell in cells if cell.setting == "alpha 10"]


def test_finished_cells_are_kept_and_stopped_ones_go_on(tmp_path: Path) -> None:
    untrained, simclr, orchestra = cells = cells_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_cells([simclr], Log(stop_after=1))
    assert [status_of(cell.path) for cell in cells] == [CellStatus.missing, CellStatus.unfinished, CellStatus.missing]
    log = Log()
    assert run_cells(cells, log) == {}
    assert log.ended == log.started == [UNTRAINED, "SimCLR", "Orchestra"]
    assert {status_of(cell.path) for cell in cells} == {CellStatus.finished}
    assert len((simclr.path / "metrics.jsonl").read_text().splitlines()) == 2
    assert len((untrained.path / "metrics.jsonl").read_text().splitlines()) == 1
    again = Log()
    run_cells(cells, again)
    assert again.started == []
    check_same(cells)
    shutil.rmtree(orchestra.path)
    run_cells(cells, again)
    assert again.started == ["Orchestra"]


def test_a_failure_stays_alone(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, SMALL.replace('"method.projection_dim=16"', '"model.pretrained=nowhere"'))
    log = Log()
    failures = run_cells(cells, log)
    assert [cell.variant for cell in failures] == ["Orchestra"]
    assert "nowhere" in failures[cells[2]]
    assert log.failed == {"Orchestra": failures[cells[2]]}
    assert log.ended == [UNTRAINED, "SimCLR"]


def test_a_run_of_another_config_is_refused(tmp_path: Path) -> None:
    cells = cells_of(tmp_path)
    run_cells(cells[1:2])
    other = cells_of(tmp_path, SMALL.replace("partition.alpha=10.0", "partition.alpha=20.0"))
    with pytest.raises(UserError, match=r"partition\.alpha = 10\.0, and the study now says 20\.0"):
        check_same(other)
    check_same(cells_of(tmp_path, SMALL.replace("engine.workers=0", "engine.workers=1")))


def test_a_backbone_that_the_run_chose_is_what_the_study_says(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, SMALL.replace("model.backbone=cfcl-cnn", "model.backbone=auto"))
    run_cells(cells[1:2])
    assert 'backbone = "convnet"' in (cells[1].path / "config.toml").read_text()
    check_same(cells)
    with pytest.raises(UserError, match=r"model\.backbone = 'convnet', and the study now says 'cfcl-cnn'"):
        check_same(cells_of(tmp_path))


def test_a_run_that_starts_from_one_in_work_waits_for_it(tmp_path: Path) -> None:
    _, first, second = cells_of(tmp_path)
    second = replace(second, needs=(first.path,))
    other = RunDirectory.create(first.path, first.config().as_tree())
    other.lock()
    log = Log()
    run_cells([second], log)
    assert log.started == []
    other.unlock()
    run_cells([second], log)
    assert log.started == ["Orchestra"]


def test_a_run_that_another_process_works_on_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = cells_of(tmp_path)[1]
    other = RunDirectory.create(cell.path, cell.config().as_tree())
    other.lock()
    try:
        log = Log()
        assert run_cells([cell], log) == {}
        assert log.started == []
        seen = iter([CellStatus.missing, CellStatus.missing, CellStatus.running])
        monkeypatch.setattr(runner, "status_of", lambda path: next(seen))
        assert run_cells([cell], log) == {}, "it was taken between the look and the start"
        assert log.failed == {}
    finally:
        other.unlock()


def test_a_run_that_failed_is_not_finished(tmp_path: Path) -> None:
    cell = cells_of(tmp_path)[1]

    class Fail(Stop):
        def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
            if state.round == 1:
                raise UserError("The disk is full.")

    class Failing(Log):
        def on_cell_start(self, cell: Cell, config: Config) -> Sequence[Callback]:
            return (Fail(1),)

    assert run_cells([cell], Failing()) == {cell: "The disk is full."}
    assert status_of(cell.path) is CellStatus.unfinished
    log = Log()
    assert run_cells([cell], log) == {}
    assert log.ended == ["SimCLR"]
    assert status_of(cell.path) is CellStatus.finished


def test_untrained_weights_are_finished_and_cannot_be_continued(tmp_path: Path) -> None:
    untrained, simclr, _ = cells_of(tmp_path)
    run_cells([untrained, simclr])
    directory = RunDirectory(untrained.path)
    assert directory.untrained
    assert not RunDirectory(simclr.path).untrained
    assert run_status(directory).word == "finished"
    with pytest.raises(UserError, match="there is nothing to continue"):
        resume(untrained.path)
    assert len((untrained.path / "metrics.jsonl").read_text().splitlines()) == 1


def test_a_run_is_not_finished_before_its_model_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = cells_of(tmp_path)[1]

    def full(run: LoadedRun) -> None:
        raise UserError("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(LoadedRun, "save_model", full)
        assert run_cells([cell]) == {cell: "The disk is full."}
    assert status_of(cell.path) is CellStatus.unfinished
    assert run_cells([cell]) == {}
    assert status_of(cell.path) is CellStatus.finished
    assert RunDirectory(cell.path).model.is_dir()


def test_a_variant_without_training_tells_how_classes_lie(tmp_path: Path) -> None:
    text = SMALL.replace('name = "SimCLR"\n', 'name = "SimCLR"\ntrain = false\n').replace(
        "partition.alpha=10.0", "partition.scheme=iid"
    )
    cell = cells_of(tmp_path, text)[1]
    assert (cell.variant, cell.untrained) == ("SimCLR", True)
    run_cells([cell])
    record = RunDirectory(cell.path).logs["metrics"].read()[0]
    experiment = Experiment.prepare(cell.config())
    assert experiment.dataset.labels is not None
    held = [experiment.dataset.labels[rows].tolist() for rows in experiment.partition.indices]
    assert record["classes-per-client"] == sum(len(set(labels)) for labels in held) / len(held)
    assert record["classes-of-one-percent"] == record["classes-per-client"], "no client has a hundred samples"


def test_helpers_have_one_thread_each() -> None:
    with threads(3):
        runner._work_on_cells([], os.getppid())
        assert torch.get_num_threads() == 1


def test_helpers_stop_with_the_process_that_started_them(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL.replace("federation.rounds=2", "federation.rounds=100000"))
    command = ["study", "small.toml", "--only", "SimCLR", "--jobs", "2"]
    call = [sys.executable, "-m", "unisono", *command]
    study = subprocess.Popen(call, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True)

    def running() -> int:
        return sum(status_of(path.parent) is CellStatus.running for path in tmp_path.glob("runs/small/*/metrics.jsonl"))

    def wait_for(number: int) -> None:
        patience = time.monotonic() + 600
        while running() != number:
            assert time.monotonic() < patience, f"{running()} cells are running, not {number}"
            time.sleep(0.1)

    try:
        wait_for(2)
        study.kill()
        study.wait()
        wait_for(0)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(study.pid, signal.SIGKILL)
