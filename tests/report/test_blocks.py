from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from unisono.report.blocks import Series, columns, document, lines, section, table


def test_numbers_that_are_not_finite_become_gaps() -> None:
    chart = lines("Loss", "round", "loss", [Series("a", [1, 2, 3], [1.0, math.nan, math.inf], [0, None, 0], [1, -math.inf, 1])])
    assert chart["series"][0]["y"] == [1.0, None, None]
    assert chart["series"][0]["high"] == [1, None, 1]
    assert table("", ["a", "b"], [["x", math.nan]])["rows"] == [["x", None]]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
def test_every_block_is_json_and_as_exact_as_a_screen(values: list[float]) -> None:
    block = columns("", "x", "y", ["g"], [str(number) for number in range(len(values))], [values])
    found = json.loads(json.dumps(block, allow_nan=False))["values"][0]
    for before, after in zip(values, found, strict=True):
        assert after is None if not math.isfinite(before) else math.isclose(before, after, rel_tol=1e-6)


def test_a_band_needs_both_edges() -> None:
    assert "low" not in Series("a", [1], [1], low=[0]).as_json()


def test_sections_without_blocks_are_left_out() -> None:
    page = document("t", "", [section("a", "A", [None]), section("b", "B", [table("", ["x"], [[1]])])])
    assert [part["id"] for part in page["sections"]] == ["b"]
