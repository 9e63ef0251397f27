from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.studies.conftest import SMALL
from unisono.core.config import read_toml
from unisono.core.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.runs.manifest import PAGES
from unisono.runs.verify import verify
from unisono.studies.grid import Cell, make_cells
from unisono.studies.reuse import copy_run, find_reusable_runs, is_timed
from unisono.studies.runner import CellStatus, check_same, run_cells, status_of
from unisono.studies.study import read_study


def cells_of(tmp_path: Path, name: str, text: str = SMALL) -> list[Cell]:
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    cells = make_cells(read_study(path), tmp_path / "runs", seeds=[0])
    return [cell for cell in cells if cell.setting == "alpha 10"]


def test_a_run_of_the_same_config_is_copied_and_nothing_else(tmp_path: Path) -> None:
    first = cells_of(tmp_path, "first")
    assert find_reusable_runs(first, tmp_path / "runs") == {}, "there is no such directory yet"
    run_cells(first[:2])
    untrained, simclr, orchestra = second = cells_of(tmp_path, "second", SMALL.replace("engine.workers=0", "engine.workers=1"))
    reusable = find_reusable_runs(second, tmp_path / "runs")
    assert reusable == {untrained: first[0].path, simclr: first[1].path}, "untrained weights are never reused for trained ones"
    for cell, source in reusable.items():
        copy_run(cell, source)
        assert status_of(cell.path) is CellStatus.finished
        assert (cell.path / "metrics.jsonl").read_bytes() == (source / "metrics.jsonl").read_bytes()
        assert read_toml(cell.path / "config.toml")["run"]["name"] == cell.path.name
        assert RunDirectory(cell.path).read_json("status.json")["copied_from"] == str(source)
    check_same(second)
    assert status_of(orchestra.path) is CellStatus.missing
    assert find_reusable_runs(second, tmp_path / "runs") == {}, "what is there already is not copied"
    assert not list(simclr.path.parent.glob(".copy-*"))
    run_cells([simclr])
    copy_run(simclr, first[1].path)  # a process that came second changes nothing


def test_a_copy_lists_no_file_that_it_lacks(tmp_path: Path) -> None:
    first, second = cells_of(tmp_path, "first")[1], cells_of(tmp_path, "second")[1]
    run_cells([first])
    source = RunDirectory(first.path)
    for name in PAGES:
        (first.path / name).write_text("a page")
    source.manifest.record([*source.manifest.names(), *PAGES])
    copy_run(second, first.path)
    assert not [problem for problem in verify(RunDirectory(second.path)).values() if problem]
    assert not (second.path / "report.html").exists()


def test_another_program_a_lost_client_and_a_file_are_reasons_to_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cells_of(tmp_path, "first")[1], cells_of(tmp_path, "second")[1]
    run_cells([first])
    directory = RunDirectory(first.path)
    assert find_reusable_runs([second], tmp_path / "runs") == {second: first.path}
    found = directory.read_json("environment.json")
    directory.write_json("environment.json", {**found, "started": "long ago"})
    assert find_reusable_runs([second], tmp_path / "runs") == {second: first.path}
    directory.write_json("environment.json", {**found, "code": "another"})
    assert find_reusable_runs([second], tmp_path / "runs") == {}
    directory.write_json("environment.json", found)
    directory.logs["failures"].append({"round": 0, "client": 1, "phase": "train", "reason": "too slow"})
    assert find_reusable_runs([second], tmp_path / "runs") == {}
    (first.path / "failures.jsonl").unlink()
    for setting in ("report.enabled=true", "data.path=x.npz", "track.tensorboard=true"):
        changed = replace(second, assignments=(*second.assignments, setting))
        changed_first = RunDirectory(first.path)
        changed_first.save_config(changed.config().as_tree())
        assert changed_first.finished
        assert find_reusable_runs([changed], tmp_path / "runs") == {}, setting


def test_other_settings_and_unfinished_runs_are_no_twins(tmp_path: Path) -> None:
    first = cells_of(tmp_path, "first")[1]
    run_cells([first])
    changed = cells_of(tmp_path, "changed", SMALL.replace("partition.alpha=10.0", "partition.alpha=20.0"))
    assert find_reusable_runs(changed, tmp_path / "runs") == {}
    same = cells_of(tmp_path, "same")
    RunDirectory(first.path).write_json("status.json", {"status": "failed", "reason": "no more room"})
    assert find_reusable_runs(same, tmp_path / "runs") == {}
    for odd in ("{", "null", "[]", '{"status": "finished", "round": null}'):
        (first.path / "status.json").write_text(odd)
        assert len(find_reusable_runs(same, tmp_path / "runs")) == (1 if "finished" in odd else 0)
    RunDirectory(first.path).write_json("status.json", {"status": "finished", "round": 2})
    assert list(find_reusable_runs(same, tmp_path / "runs").values()) == [first.path]
    (first.path / "config.toml").write_text("damaged [")
    assert find_reusable_runs(same, tmp_path / "runs") == {}


def test_a_copy_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = cells_of(tmp_path, "first")[1], cells_of(tmp_path, "second")[1]
    run_cells([first])

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    with pytest.raises(UserError, match="No space left"):
        copy_run(second, first.path)
    assert status_of(second.path) is CellStatus.missing
    assert list(second.path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "timed"),
    [
        ("", "", False),
        ('"rounds to knn 2"', '"seconds to knn 2"', True),
        ('"rounds to knn 2"', '"seconds"', True),
        ('plot = "line"\n', 'plot = "curves"\naxis = "delay"\n', True),
    ],
)
def test_time_is_measured_and_not_copied(tmp_path: Path, old: str, new: str, timed: bool) -> None:
    (tmp_path / "small.toml").write_text(SMALL.replace(old, new) if old else SMALL)
    assert is_timed(read_study(tmp_path / "small.toml")) is timed
