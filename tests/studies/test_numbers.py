"""Numbers of a study that claims are judged by: from runs, kept in a file, read again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.studies.claim_numbers import make_numbers
from tests.studies.conftest import SMALL
from tests.studies.test_history import write_run
from unisono.core.errors import UserError
from unisono.studies.grid import make_cells
from unisono.studies.kept_results import keep, read_kept, stale_cells
from unisono.studies.numbers import CellNumbers, config_hash, read_numbers
from unisono.studies.output import as_json, as_markdown, write_numbers, write_pictures
from unisono.studies.results import Results, collect
from unisono.studies.study import read_study

TEXT = SMALL.replace(
    '"knn", "rounds to knn 0.01", "rounds to knn 2"', '"linear", "rounds to linear 0.65", "delay to linear 0.65"'
)
FLOORS = {"raw pixels": {"linear": 0.3}, "PCA of pixels": {"linear": 0.35}}


def make(tmp_path: Path, text: str = TEXT) -> Results:
    """SimCLR under alpha 0.1 with two seeds: one reaches 65% in the second round, the other never."""
    path = tmp_path / "hand.toml"
    path.write_text(text)
    study = read_study(path)
    cells = make_cells(study, tmp_path / "runs")
    for cell in cells:
        if (cell.variant, cell.setting) == ("SimCLR", "alpha 0.1"):
            write_run(cell.path, [0.5, 0.7 if cell.seed == 0 else 0.6])
            (cell.path / "config.toml").write_text("")
            (cell.path / "status.json").write_text('{"status": "finished"}')
            floors = {**FLOORS, "untrained weights": {"linear": 0.4 + 0.1 * cell.seed}}
            (cell.path / "floors.json").write_text(json.dumps(floors))
    return collect(study, cells)


def test_numbers_of_runs(tmp_path: Path) -> None:
    ((place, cell),) = make(tmp_path).numbers().cells.items()
    assert place == ("SimCLR", "alpha 0.1")
    assert cell.seeds == [0, 1]
    assert cell.values["linear"] == [0.7, 0.6]
    assert cell.values["rounds to linear 0.65"] == [2.0, None]
    assert cell.unreached == {"rounds to linear 0.65": [None, 3.0], "delay to linear 0.65": [None, 9.0]}
    assert cell.by_seed("rounds to linear 0.65") == {0: 2.0, 1: 3.0}
    assert cell.floors == {
        "raw pixels": {"linear": [0.3, 0.3]},
        "untrained weights": {"linear": [0.4, 0.5]},
    }, "the two floors that count"
    assert cell.floor("untrained weights", "linear") == pytest.approx(0.45)
    assert cell.floor("untrained weights", "knn") is None
    assert cell.looks == {}
    assert cell.problems == {}


def test_curves_keep_every_look(tmp_path: Path) -> None:
    (cell,) = make(tmp_path, TEXT.replace('plot = "line"', 'plot = "curves"')).numbers().cells.values()
    assert cell.looks == {"linear": {"1": [0.5, 0.5], "2": [0.7, 0.6]}}
    assert cell.by_seed("linear", "2") == {0: 0.7, 1: 0.6}


def test_a_diverged_run_and_one_with_fewer_clusters_are_marked(tmp_path: Path) -> None:
    results = make(tmp_path, TEXT.replace('name = "SimCLR"', 'name = "SimCLR"\nmethod = "orchestra"'))
    first, second = (one.cell.path / "metrics.jsonl" for one in results.finished("SimCLR", "alpha 0.1"))
    first.write_text(first.read_text().replace('"loss": 4.0', '"loss": NaN'))
    second.write_text(second.read_text().replace('"loss": 4.0', '"num_global_clusters": 5, "loss": 4.0'))
    again = collect(results.study, [one.cell for one in results.cell_results])
    (cell,) = again.numbers().cells.values()
    assert cell.problems == {"0": "diverged", "1": "had fewer global clusters than asked for"}


def test_results_json_and_a_kept_copy_hold_the_same_numbers(tmp_path: Path) -> None:
    results = make(tmp_path)
    write_numbers(results, tmp_path)
    whole = read_numbers(tmp_path / "results.json")
    kept = keep(whole, tmp_path / "kept").path
    assert kept.name == "hand-small.json"
    assert kept.stat().st_size < 600
    assert read_kept(tmp_path / "kept") == [whole]
    assert whole.as_json() == json.loads(json.dumps(results.numbers().as_json()))
    assert json.loads((tmp_path / "results.json").read_text())["claims"] == []


def test_a_file_without_numbers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for text in ("{}", "[1]", "no", '{"study": "s", "scale": "mini", "cells": [{"what": 1}]}'):
        path.write_text(text)
        with pytest.raises(UserError, match="holds no results of a study"):
            read_numbers(path)
    path.write_text('{"format": 2}')
    with pytest.raises(UserError, match="has format 2"):
        read_numbers(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_numbers(tmp_path / "nothing.json")


def test_other_settings_than_the_studys_are_named() -> None:
    study = read_study("orchestra-figure-5")
    cells = make_cells(study, Path("elsewhere"), seeds=[7])
    kept = [CellNumbers(cell.variant, cell.setting, [7], config_hash(cell)) for cell in cells]
    assert stale_cells(make_numbers(*kept, study=study.name, scale=study.config.scale)) == {}
    kept[0] = replace(kept[0], config="0123456789ab")
    kept[1] = replace(kept[1], variant="MoCo")
    first, second = stale_cells(make_numbers(*kept, study=study.name, scale=study.config.scale)).values()
    assert first.startswith(
        f"orchestra-figure-5 ({study.config.scale}): {cells[0].variant}, {cells[0].setting} was run with other"
    )
    assert "MoCo" in second
    assert second.endswith("is no cell of the study any more.")


def test_the_hash_of_options_knows_other_options_and_no_seeds_or_places() -> None:
    study = read_study("fedmcc-table-1")
    one, other = (make_cells(study, Path(place), seeds=[seed]) for place, seed in (("here", 0), ("/there", 5)))
    assert [config_hash(cell) for cell in one] == [config_hash(cell) for cell in other]
    assert len({config_hash(cell) for cell in one}) == len(one)
    changed = make_cells(study, Path("here"), seeds=[0], overrides=["training.learning_rate=0.123"])
    assert not {config_hash(cell) for cell in changed} & {config_hash(cell) for cell in one}
    workers = make_cells(study, Path("here"), seeds=[0], overrides=["engine.workers=0"])
    assert [config_hash(cell) for cell in workers] == [config_hash(cell) for cell in one]


def test_a_study_shows_the_verdicts_of_its_claims(tmp_path: Path) -> None:
    """Orchestra has 70, 71 and 73% with a target model and 4 points less without, nearly the same for all seeds."""
    study = read_study("orchestra-table-6")
    cells = make_cells(study, tmp_path)
    best = {0: 0.70, 1: 0.71, 2: 0.73}
    for cell in cells:
        lost = {"Base setting": 0.0, "No target model": 0.04 + 0.001 * cell.seed}.get(cell.variant)
        if lost is not None and cell.setting == "cross-device":
            write_run(cell.path, [None, best[cell.seed] - lost])
            (cell.path / "config.toml").write_text("")
            (cell.path / "status.json").write_text('{"status": "finished"}')
            floors = {"raw pixels": {"linear": 0.5}, "untrained weights": {"linear": 0.4}}
            (cell.path / "floors.json").write_text(json.dumps(floors))
    results = collect(study, cells)
    (verdict,) = as_json(results)["claims"]
    assert (verdict["claim"], verdict["verdict"], verdict["seeds"]) == ("orchestra-target-helps", "holds", 3)
    assert verdict["mean"] == pytest.approx(4.1)
    row = "| +3.0 (71.58 - 68.63) | +4.1 (+3.9 to +4.3) | 3 | holds |"
    assert row in as_markdown(results)
    write_pictures(results, tmp_path / study.directory)
    page = (tmp_path / study.directory / "report.html").read_text()
    assert "Without the slow target network Orchestra is somewhat worse." in page
    assert "+4.1 (+3.9 to +4.3)" in page
