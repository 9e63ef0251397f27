"""A sample of the sweep of ``make faults``."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from reliability.disk import FAULTS, Fault
from reliability.scenarios import Client, Resume, Run, Server, Study
from reliability.sweep import Scenario, every, sweep

SAMPLE: list[tuple[type[Scenario], Fault, int, int]] = [
    *((Client, fault, 12, 5) for fault in FAULTS),
    (Run, "full", 150, 90), (Run, "broken", 150, 162), (Run, "killed", 100, 31), (Run, "power", 100, 77),
    (Resume, "killed", 150, 45), (Study, "power", 260, 120), (Server, "killed", 150, 60), (Server, "power", 150, 12),
]  # fmt: skip


@pytest.mark.parametrize(("scenario", "fault", "step", "first"), SAMPLE)
def test_a_fault_changes_nothing_in_the_end(
    scenario: type[Scenario], fault: Fault, step: int, first: int, tmp_path: Path
) -> None:
    swept = sweep(scenario(), fault, tmp_path, every(step, first))
    assert swept.num_points
    assert swept.different == {}
