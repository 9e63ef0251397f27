"""A sample of the sweep of ``make faults``."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from reliability.disk import FAULTS, Fault
from reliability.faults import warm_up
from reliability.scenarios import Client, Resume, Run, Server, Study
from reliability.sweep import Scenario, every, sweep

SAMPLE: list[tuple[type[Scenario], Fault, int, int]] = [
    *((Client, fault, 30, 5) for fault in FAULTS),
    (Run, "full", 300, 90), (Run, "broken", 300, 162), (Run, "killed", 200, 31), (Run, "power", 200, 77),
    (Resume, "killed", 300, 45), (Study, "power", 600, 120), (Server, "killed", 100, 12), (Server, "power", 300, 12),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything that a run imports, so that its forks need not."""
    warm_up(Run(), tmp_path_factory.mktemp("warm") / "root")


@pytest.mark.parametrize(("scenario", "fault", "step", "first"), SAMPLE)
def test_a_fault_changes_nothing_in_the_end(
    scenario: type[Scenario], fault: Fault, step: int, first: int, tmp_path: Path
) -> None:
    swept = sweep(scenario(), fault, tmp_path, every(step, first))
    assert swept.points
    assert swept.different == {}
