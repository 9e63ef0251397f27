"""Deadlines follow the time that clients took lately."""

from __future__ import annotations

from unisono.engines.flower.pace import Pace


def test_a_client_gets_three_times_its_median() -> None:
    pace = Pace(600.0)
    assert pace.limit(0, "train") == 600.0
    for seconds in (30.0, 40.0, 50.0, 500.0, 40.0):
        pace.took(0, "train", seconds)
    assert pace.limit(0, "train") == 120.0
    assert pace.limit(0, "cluster") == 600.0, "each phase has its own"
    for _ in range(3):
        pace.took(0, "train", 500.0)
    assert pace.limit(0, "train") == 600.0, "never more than engine.client_timeout"
    pace.took(1, "train", 0.1)
    assert pace.limit(1, "train") == 60.0, "never less than a minute"
    unlimited = Pace(None)
    assert unlimited.limit(0, "train") is None
    unlimited.took(0, "train", 100.0)
    assert unlimited.limit(0, "train") == 300.0


def test_a_new_client_gets_what_the_others_took_with_room() -> None:
    sizes = {0: 100, 1: 100, 2: 100, 3: 300}
    pace = Pace(600.0, size=lambda client: sizes[client])
    assert pace.limit(2, "train") == 600.0, "nobody has answered yet"
    pace.took(0, "train", 2.0)
    assert pace.limit(2, "train") == 60.0
    for seconds in (10.0, 30.0, 20.0):
        pace.took(1, "train", seconds)
    assert pace.limit(2, "train") == 100.0, "five times the slowest of the others"
    assert pace.limit(3, "train") == 300.0, "and longer for more samples"
    sizes[3] = 0
    assert pace.limit(3, "train") == 100.0, "the number of samples is not known"
    assert pace.limit(2, "cluster") == 600.0


def test_after_a_miss_a_client_gets_twice_as_long_until_it_answers() -> None:
    """A client that is slower than all others would never be heard else."""
    pace = Pace(600.0)
    pace.took(0, "train", 1.0)
    for limit in (60.0, 120.0, 240.0, 480.0, 600.0, 600.0):
        assert pace.limit(1, "train") == limit
        pace.missed(1, "train")
    assert pace.limit(0, "train") == 60.0
    pace.took(1, "train", 100.0)
    assert pace.limit(1, "train") == 300.0
