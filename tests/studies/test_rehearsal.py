"""Rehearsal of studies: cells that run, cells that do not, and measurements that are shared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.studies.conftest import SMALL
from unisono.core.method import Phase
from unisono.evaluation.config import EvaluationConfig
from unisono.rehearsal import Measurement, Stage, rehearse
from unisono.rehearsal_engine import Limits, Part, TurnCost
from unisono.studies.grid import Cell, make_cells
from unisono.studies.rehearsal import Rehearser, measure_in_process, step_key
from unisono.studies.study import list_studies, read_study, scales_of

COST = Measurement((Stage(2, ((Phase("train"), TurnCost(1.0, 0.0, 0.0)),), 0.0),), 16, 1e9, 0.0, 0.0)


def one_step(part: Part) -> Measurement:
    """One step of two samples in every phase, in this process."""
    return rehearse(replace(part, probe_data=None), Limits(measure=False))


def cost(cell: Cell) -> tuple[bool, bool, str, int]:
    """Order of cells: a network that is trained from its start before anything else, then the smallest one, on few pixels."""
    config = cell.config()
    is_network = config.method_name != "federated-kmeans" and not cell.untrained
    return not is_network, bool(cell.needs), config.model.backbone, config.model.input_size or 0


@pytest.mark.timeout(1200)
def test_a_cell_of_every_study_makes_a_step_at_paper_scale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("UNISONO_DATA", str(tmp_path))
    made: dict[str, Measurement] = {}

    def one_step_of_each_kind(part: Part) -> Measurement:
        """Steps are equal in studies that differ in their probes only."""
        kind = step_key(replace(part, config=replace(part.config, evaluation=EvaluationConfig())))
        made[kind] = made.get(kind) or one_step(part)
        return made[kind]

    rehearser = Rehearser(one_step_of_each_kind, "paper")
    refused = {}
    for name, path in list_studies().items():
        if "paper" in scales_of(path):
            cells = make_cells(read_study(name, "paper"), tmp_path / "runs", seeds=[0])
            first = min((cell for cell in cells if cell.setting == cells[0].setting), key=cost)
            result = rehearser.rehearse(first)
            refused |= {f"{name}: {first.title}": result.reason} if result.reason else {}
    assert refused == {}
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def cells_of(text: str, tmp_path: Path) -> list[Cell]:
    path = tmp_path / "small.toml"
    orchestra = 'method = "orchestra"\nset = ['
    path.write_text(
        text.replace(orchestra, orchestra + '"method.num_global_clusters=8", ')
    )  # a study refuses too few centroids
    return make_cells(read_study(path), tmp_path / "runs")


def test_cells_share_what_no_step_depends_on(tmp_path: Path) -> None:
    measured: list[Part] = []

    def measure(part: Part) -> Measurement:
        measured.append(part)
        return COST

    text = SMALL.replace('"engine.workers=0",', '"engine.workers=0", "training.batch_size=2",')
    found = list(Rehearser(measure).rehearse_all(cells_of(text, tmp_path)))
    assert [(result.cell.variant, result.cell.setting) for result in found] == [
        ("untrained weights", "alpha 0.1"),
        ("SimCLR", "alpha 0.1"),
        ("Orchestra", "alpha 0.1"),
        ("untrained weights", "alpha 10"),
        ("SimCLR", "alpha 10"),
        ("Orchestra", "alpha 10"),
    ]
    assert {result.num_seeds for result in found} == {2}
    assert [part.config.method_name for part in measured] == ["simclr", "orchestra"], "alpha and learning rate change no step"
    assert found[0].seconds < found[1].seconds, "untrained weights are only probed"
    larger = text.replace('set = ["partition.alpha=10.0"]', 'set = ["partition.alpha=10.0", "training.batch_size=3"]')
    list(Rehearser(measure).rehearse_all(cells_of(larger, tmp_path)))
    assert len(measured) == 2 + 4, "the batch does"


def test_the_time_of_a_run_is_that_of_its_steps(tmp_path: Path) -> None:
    options = '"engine.workers=0", "training.batch_size=4", "training.local_epochs=3", "evaluation.floors=false",'
    cells = cells_of(SMALL.replace('"engine.workers=0",', options), tmp_path)
    result = Rehearser(lambda part: COST).rehearse(cells[1])
    num_clients = cells[1].config().partition.num_clients
    assert result.seconds == pytest.approx(2 * 2 * 3 * (120 / num_clients) / 4), "rounds, clients, epochs, batches"
    assert result.memory == pytest.approx(1e9 + (120 + 40) * 64)


def test_a_cell_that_cannot_run_says_why_and_the_others_run(tmp_path: Path) -> None:
    text = SMALL.replace('"method.projection_dim=16"', '"method.projection_dim=16", "partition.num_clients=500"')
    found = list(Rehearser(one_step).rehearse_all(cells_of(text, tmp_path)))
    reasons = {result.cell.variant: result.reason for result in found}
    assert reasons["SimCLR"] == ""
    assert "partition.num_clients must be <= 120" in reasons["Orchestra"]
    refused = SMALL.replace("method.projection_dim=16", "method.projection_dim=0")
    found = list(Rehearser(one_step).rehearse_all(cells_of(refused, tmp_path)))
    assert "method.projection_dim" in next(result.reason for result in found if result.cell.variant == "Orchestra")
    assert not (tmp_path / "runs").exists()


def test_a_run_that_does_not_exist_yet_is_stood_in_for(tmp_path: Path) -> None:
    text = SMALL.replace('"method.projection_dim=16"', '"method.projection_dim=16", "model.pretrained={run of SimCLR}"')
    found = list(Rehearser(one_step).rehearse_all(cells_of(text, tmp_path)))
    assert [result.reason for result in found] == [""] * 6
    other = text.replace("{run of SimCLR}", '{run of SimCLR}", "model.backbone=convnet')
    found = list(Rehearser(one_step).rehearse_all(cells_of(other, tmp_path)))
    assert "does not fit the table [model]" in next(result.reason for result in found if result.cell.variant == "Orchestra")


def test_a_process_of_its_own_measures_memory_and_time(tmp_path: Path) -> None:
    cells = cells_of(SMALL, tmp_path)
    parts: list[Part] = []

    def keep(part: Part) -> Measurement:
        parts.append(part)
        return COST

    Rehearser(keep).rehearse(cells[1])
    measured = measure_in_process(parts[0])
    assert 5e7 < measured.peak < 5e9
    assert 0 < measured.step < 10
    assert measured.batch_size == parts[0].batch_size
    assert sum(stage.num_rounds for stage in measured.stages) == 2
