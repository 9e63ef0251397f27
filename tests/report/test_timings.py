from __future__ import annotations

import pytest

from unisono.report.timings import MOST_COLUMNS, parts_of, timing_blocks, total_seconds

SECONDS = {"cluster": 1.0, "train": 2.0, "round": 3.5, "probe": 4.0, "map": 0.25, "clients": 6.0, "exchange_slowest": 0.5}


def test_what_no_phase_accounts_for_is_the_servers() -> None:
    assert parts_of(SECONDS) == {"cluster": 1.0, "train": 2.0, "server": 0.5, "probe": 4.0, "map": 0.25}


@pytest.mark.parametrize("num_rounds", [1, MOST_COLUMNS, MOST_COLUMNS + 1, 1000])
def test_no_second_is_lost_in_a_long_run(num_rounds: int) -> None:
    timings = [{"round": number, "seconds": SECONDS} for number in range(num_rounds)]
    chart, sums = timing_blocks(timings)
    assert len(chart["groups"]) <= MOST_COLUMNS
    assert sum(sum(row) for row in chart["values"]) == pytest.approx(7.75 * num_rounds)
    assert total_seconds(timings) == pytest.approx(7.75 * num_rounds)
    assert chart["groups"][-1].split()[-1] == str(num_rounds)
    assert {row[0]: row[2] for row in sums["rows"]} == pytest.approx(parts_of(SECONDS))


def test_nothing_timed() -> None:
    assert timing_blocks([]) == []
