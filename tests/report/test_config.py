from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unisono.report.config import shown_rounds


@given(st.integers(1, 5000), st.integers(2, 12))
def test_the_first_and_the_last_state_are_shown(num_rounds: int, count: int) -> None:
    found = shown_rounds(num_rounds, count)
    assert {0, num_rounds} <= found <= set(range(num_rounds + 1))
    assert len(found) == min(count, num_rounds + 1)


def test_one_round_is_the_last() -> None:
    assert shown_rounds(7, 1) == {7}
    assert shown_rounds(6, 4) == {0, 2, 4, 6}
