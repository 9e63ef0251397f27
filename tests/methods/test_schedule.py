from __future__ import annotations

import pytest

from unisono.core.errors import UserError
from unisono.methods.schedule import Schedule


def rounds(found: list[bool]) -> list[int]:
    return [round for round, holds in enumerate(found) if holds]


@pytest.mark.parametrize(("aggregation", "steps"), [(50, 10), (75, 5), (125, 5), (225, 5), (250, 10)])
def test_pulls_and_aggregations_fall_on_the_steps_of_the_paper(aggregation: int, steps: int) -> None:
    """Pull at t = tau T_p for tau >= 1, aggregate at t = k T_a: two clocks that know nothing of each other."""
    total = 500
    schedule = Schedule(steps, 10, aggregation, total // steps, pull_at_start=False)
    pulled = [steps * round for round in range(total // steps) if schedule.pulls(round)]
    averaged = [steps * (round + 1) for round in range(total // steps) if schedule.ends_interval(round)]
    assert pulled == list(range(10, total, 10))
    assert averaged == sorted({*range(aggregation, total + 1, aggregation), total})
    for round in range(total // steps):
        assert steps * schedule.interval_of(round) == steps * round // aggregation * aggregation
        assert steps * schedule.pull_interval_of(round) == steps * round // 10 * 10


def test_first_pull_may_come_before_the_first_step() -> None:
    assert rounds([Schedule(10, 10, 50, 5).pulls(round) for round in range(5)]) == [0, 1, 2, 3, 4]
    assert rounds([Schedule(5, 10, 50, 5).pulls(round) for round in range(5)]) == [0, 2, 4]
    assert not any(Schedule(5, 10, 50, 5, exchanges=False).pulls(round) for round in range(5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (10, 10, 125, 50),
            r"method\.aggregation_steps .* 10, got 125: set method\.pull_steps = 10, training\.local_steps = 5,",
        ),
        ((10, 25, 50, 50), r"method\.pull_steps must be a multiple of training\.local_steps, 10, got 25"),
        ((10, 100, 50, 10, True, False), r"the first pull after 100 steps, and the run has 100"),
    ],
)
def test_steps_that_do_not_fit_are_explained(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Schedule(*arguments)  # type: ignore[arg-type]
