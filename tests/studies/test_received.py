"""The study of negatives from received points compares runs of the same modelled time."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.config import Config
from unisono.evaluation.delay import exchange_seconds, upload_seconds
from unisono.methods.schedule import Schedule
from unisono.studies.grid import make_cells
from unisono.studies.study import UNTRAINED, read_study

PARAMETERS, PIXELS = 45_666, 28 * 28


def seconds_of(config: Config) -> tuple[float, float]:
    """Modelled seconds of a run, and those before its last interval without a pull before the first step.

    Clients have at least as many points as they send. Runs with a pull before the first step have the length of those without.
    """
    method, steps = config.method, config.training.local_steps or 0
    exchanges = method.selection != "none"
    num_rounds = config.federation.rounds
    schedule = Schedule(
        steps, method.pull_steps or steps, method.aggregation_steps, num_rounds, exchanges, method.pull_at_start
    )
    push = exchange_seconds(method.delay, [method.num_reserve], PIXELS) if method.selection == "importance" else 0.0
    pull = exchange_seconds(method.delay, [min(method.points_per_pull, method.num_candidates)], PIXELS)
    upload = upload_seconds(method.delay, PARAMETERS)
    spent, ends = push, []
    for round in range(num_rounds):
        spent += pull if schedule.pulls(round) else 0.0
        if schedule.ends_interval(round):
            spent += upload
            ends.append(spent)
    return ends[-1], ends[-2] - (pull if exchanges and method.pull_at_start else 0.0)


@pytest.mark.parametrize(("scale", "target"), [("small", 20.0), ("paper", 100.0)])
def test_every_run_is_as_long_as_it_takes(scale: str, target: float) -> None:
    study = read_study("cfcl-received", scale)
    cells = [cell for cell in make_cells(study, Path("runs"), seeds=[0]) if cell.variant != UNTRAINED]
    assert f"linear at transmission {target:.0f}" in study.config.metrics
    for cell in cells:
        config = cell.config()
        last, before = seconds_of(config)
        assert before < target <= last, cell.title
        assert config.federation.rounds * (config.training.local_steps or 0) % config.method.aggregation_steps == 0
        assert config.evaluation.probe_every * (config.training.local_steps or 0) == config.method.aggregation_steps
    assert {config.method.negatives for config in (cell.config() for cell in cells)} == {"union", "received"}


def test_seconds_of_the_paper() -> None:
    """An aggregation of 1.46 s and five pulls of n x 6.27 ms take 50 steps, without the first pull."""
    cells = make_cells(read_study("cfcl-received", "paper"), Path("runs"), seeds=[0])
    steps = {(cell.variant, cell.setting): cell.config().federation.rounds * 10 for cell in cells}
    assert steps["FedAvg", "n = 20"] == 3450
    assert steps["Uniform, union", "n = 20"] == 2400
    assert steps["Uniform, received", "n = 300"] == 500
