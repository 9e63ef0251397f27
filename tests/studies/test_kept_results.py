"""Kept results grow from one machine to the next: new seeds and cells are added, and nothing gets lost unsaid."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.studies.claim_numbers import make_cell, make_numbers
from unisono.studies.grid import make_cells
from unisono.studies.kept_results import keep, merge, read_kept
from unisono.studies.numbers import CellNumbers, Numbers, config_hash
from unisono.studies.study import read_study

STUDY = read_study("orchestra-table-1", "mini")
HASHES = {(cell.variant, cell.setting): config_hash(cell) for cell in make_cells(STUDY, Path("runs"), seeds=[0])}
SPECLOSS, ORCHESTRA = ("SpecLoss", "cross-device"), ("Orchestra", "cross-device")


def cell_of(place: tuple[str, str], values: dict[int, float], **more: object) -> CellNumbers:
    """Return a cell with the study's own config and these values of the linear probe by seed."""
    made = make_cell(place[0], list(values.values()), place[1], config=HASHES[place], seconds=[60.0] * len(values))
    return replace(made, seeds=list(values), **more)


def numbers_of(*cells: CellNumbers) -> Numbers:
    return make_numbers(*cells, study=STUDY.name, scale="mini")


def test_new_seeds_and_cells_are_added_and_the_kept_ones_stay(tmp_path: Path) -> None:
    first = numbers_of(cell_of(ORCHESTRA, {0: 0.70, 1: 0.71, 2: 0.73}, problems={"1": "diverged"}))
    keep(first, tmp_path)
    later = cell_of(ORCHESTRA, {4: 0.75, 3: 0.74}, floors={"untrained weights": {"linear": [0.5, 0.6]}})
    kept = keep(numbers_of(later, cell_of(SPECLOSS, {3: 0.6})), tmp_path)
    assert kept.notes == []
    (read,) = read_kept(tmp_path)
    assert read == kept.numbers
    assert list(read.cells) == [SPECLOSS, ORCHESTRA], "in the study's order"
    cell = read.cells[ORCHESTRA]
    assert cell.seeds == [0, 1, 2, 3, 4]
    assert cell.values == {"linear": [0.70, 0.71, 0.73, 0.74, 0.75]}
    assert cell.floors["untrained weights"]["linear"] == [0.2, 0.2, 0.2, 0.6, 0.5]
    assert cell.floors["raw pixels"]["linear"] == [0.3, 0.3, 0.3, None, None]
    assert cell.floor("raw pixels", "linear") == pytest.approx(0.3)
    assert cell.problems == {"1": "diverged"}
    assert cell.seconds == [60.0] * 5


def test_the_same_runs_twice_change_nothing(tmp_path: Path) -> None:
    numbers = numbers_of(cell_of(ORCHESTRA, {0: 0.70, 1: 0.71}, looks={"linear": {"5": [0.5, None]}}))
    path = keep(numbers, tmp_path).path
    before = path.read_text()
    again = replace(numbers.cells[ORCHESTRA], seconds=[1.0, 2.0])
    assert keep(numbers_of(again), tmp_path).notes == [], "the clock is not the same twice"
    assert path.read_text() == before


def test_a_seed_with_two_results_is_named_and_replaced_only_if_asked() -> None:
    old, new = (numbers_of(cell_of(ORCHESTRA, {0: value, 1: 0.71})) for value in (0.70, 0.72))
    merged, (note,) = merge(old, new)
    assert note == (
        "orchestra-table-1 (mini): Orchestra, cross-device: seed 0 was run twice, with linear 0.7 and 0.72. "
        "The kept one counts; --replace takes the new one."
    )
    assert merged.cells[ORCHESTRA].by_seed("linear") == {0: 0.70, 1: 0.71}
    merged, (note,) = merge(old, new, replace=True)
    assert note.endswith("The new one counts.")
    assert merged.cells[ORCHESTRA].by_seed("linear") == {0: 0.72, 1: 0.71}


@pytest.mark.parametrize("replaced", [False, True])
def test_a_seed_that_arrives_in_one_run_alone_does_so_or_not(replaced: bool) -> None:
    metric = "rounds to knn 0.6"
    arrived = replace(cell_of(ORCHESTRA, {0: 0.7}), values={metric: [15.0]})
    late = replace(arrived, values={metric: [None]}, unreached={metric: [21.0]})
    for kept, new in ((arrived, late), (late, arrived)):
        found = merge(numbers_of(kept), numbers_of(new), replaced)[0].cells[ORCHESTRA]
        expected = new if replaced else kept
        assert (found.values, found.unreached) == (expected.values, expected.unreached)


def test_times_of_a_seed_may_differ() -> None:
    old, new = (
        numbers_of(replace(cell_of(ORCHESTRA, {0: 0.7}), values={"linear": [0.7], "seconds": [s], "delay to linear 0.6": [s]}))
        for s in (1.0, 2.0)
    )
    merged, notes = merge(old, new)
    assert notes == []
    assert merged.cells[ORCHESTRA].values["seconds"] == [1.0]


def test_cells_of_other_options_are_dropped_with_a_sentence() -> None:
    stale = replace(cell_of(ORCHESTRA, {0: 0.70, 1: 0.71}), config="0123456789ab")
    gone = make_cell("MoCo", [0.5], "cross-device")
    merged, notes = merge(numbers_of(stale, gone), numbers_of(cell_of(ORCHESTRA, {5: 0.8})))
    assert merged.cells[ORCHESTRA].seeds == [5]
    assert list(merged.cells) == [ORCHESTRA]
    assert [note.endswith("Dropped.") for note in notes] == [True, True]
    assert "was run with other options than the study has now" in notes[0]
    assert "MoCo" in notes[1]


def test_a_floor_that_is_one_number_counts_for_every_seed(tmp_path: Path) -> None:
    path = keep(numbers_of(cell_of(ORCHESTRA, {0: 0.7, 1: 0.8})), tmp_path).path
    path.write_text(path.read_text().replace("[0.3,0.3]", "0.3"))
    assert '"linear":0.3' in path.read_text()
    (read,) = read_kept(tmp_path)
    assert read.cells[ORCHESTRA].floors["raw pixels"]["linear"] == [0.3, 0.3]
    keep(numbers_of(cell_of(ORCHESTRA, {2: 0.9})), tmp_path)
    (tree,) = json.loads(path.read_text())["cells"]
    assert tree["floors"]["raw pixels"]["linear"] == [0.3, 0.3, 0.3]
