"""Deadlines follow the time that clients took lately."""

from __future__ import annotations

from unisono.engines.flower.pace import Pace


def test_a_client_gets_three_times_its_median() -> None:
    pace = Pace(600.0)
    assert pace.limit(0, "train") == 600.0
    for seconds in (30.0, 40.0, 50.0, 500.0, 40.0):
        pace.took(0, "train", seconds)
    assert pace.limit(0, "train") == 120.0
    assert (pace.limit(0, "cluster"), pace.limit(1, "train")) == (600.0, 600.0), "each phase of each client has its own"
    for _ in range(3):
        pace.took(0, "train", 500.0)
    assert pace.limit(0, "train") == 600.0, "never more than engine.client_timeout"
    pace.took(1, "train", 0.1)
    assert pace.limit(1, "train") == 60.0, "never less than a minute"
    unlimited = Pace(None)
    assert unlimited.limit(0, "train") is None
    unlimited.took(0, "train", 100.0)
    assert unlimited.limit(0, "train") == 300.0
