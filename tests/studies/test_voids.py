"""Reasons for which a claim is void."""

from __future__ import annotations

from typing import Any

import pytest

from tests.studies.claim_numbers import FLOORS, make_cell, make_claim, of
from unisono.studies.verdicts import Word, judge, measure

GOOD = make_cell("A", [0.60, 0.61, 0.62])
OTHER = make_cell("B", [0.50, 0.51, 0.53])


def void(*cells: Any, over: dict[str, Any] | None = None, contrast: dict[str, Any] | None = None) -> str | None:
    """Return why a claim is void, None where it is not."""
    (found,) = judge([measure(make_claim(over, contrast=contrast), "small", of(*cells))])
    assert found.word is not Word.not_run, found.reason
    return found.reason if found.word is Word.void else None


def test_encoders_above_all_floors_are_judged() -> None:
    assert void(GOOD, OTHER) is None


@pytest.mark.parametrize("floor", ["raw pixels", "untrained weights"])
def test_an_encoder_that_is_not_above_a_floor_says_nothing(floor: str) -> None:
    at_floor = make_cell("B", [0.50, 0.51, 0.53], floors={**FLOORS, floor: {"linear": (0.50 + 0.51 + 0.53) / 3}})
    assert void(GOOD, at_floor) == f"B: linear 51.3 is not above {floor}, 51.3"
    above = make_cell("B", [0.50, 0.51, 0.53], floors={**FLOORS, floor: {"linear": 0.5133}})
    assert void(GOOD, above) is None
    assert void(GOOD, at_floor, over={"floors": False}) is None
    assert void(GOOD, at_floor, over={"floors_on": "plus"}) is None
    sides = {"plus": {"variant": "B"}, "minus": {"variant": "A"}}
    assert void(GOOD, at_floor, over={"floors_on": "plus"}, contrast=sides) is not None


def test_floors_must_have_been_measured() -> None:
    assert void(GOOD, make_cell("B", [0.5] * 3, floors={})) == "B: untrained weights were not measured by linear"
    untrained = make_cell("untrained weights", [0.2] * 3)
    only_row = make_cell("B", [0.5] * 3, floors={})
    assert void(GOOD, only_row, untrained) == "B: raw pixels were not measured by linear"


def test_a_run_that_goes_on_from_an_encoder_has_the_untrained_weights_of_another_row() -> None:
    begun = {"raw pixels": {"linear": 0.3}}
    assert void(GOOD, make_cell("B", [0.5] * 3, floors=begun)) is None
    assert void(GOOD, make_cell("B", [0.1] * 3, floors={"raw pixels": {"linear": 0.0}})) == (
        "B: linear 10.0 is not above untrained weights, 20.0"
    )
    assert void(make_cell("A", [0.6] * 3, floors=begun), make_cell("B", [0.5] * 3, floors=begun)) is not None


def test_fine_tuning_has_a_row_of_untrained_weights_and_no_pixels() -> None:
    def cell(name: str, *values: float) -> Any:
        return make_cell(name, {"finetune-1": list(values)}, floors={})

    over = {"metric": "finetune-1"}
    plus, minus = cell("A", 0.6, 0.61, 0.63), cell("B", 0.5, 0.52, 0.51)
    assert void(plus, minus, cell("untrained weights", 0.4, 0.4, 0.4), over=over) is None
    assert void(plus, minus, cell("untrained weights", 0.52, 0.52, 0.52), over=over) == (
        "B: finetune-1 51.0 is not above untrained weights, 52.0"
    )


def test_the_time_to_a_value_is_judged_by_the_floor_of_that_probe() -> None:
    metric = "rounds to knn 0.6"
    over = {"metric": metric, "unit": "rounds", "expected": "less", "paper_effect": {"value": None}}

    def cell(name: str, knn: float, reached: list[float | None], late: list[float | None] | None = None) -> Any:
        return make_cell(name, {metric: reached, "knn": [knn] * 3}, unreached={metric: late or [None] * 3})

    slow = cell("B", 0.5, [12, 14, 16])
    assert void(cell("A", 0.6, [5, 6, 8]), slow, over=over) is None
    assert void(cell("A", 0.3, [5, 6, 8]), slow, over=over) == "A: knn 30.0 is not above raw pixels, 30.0"
    assert void(cell("A", 0.6, [5, 6, None], [None, None, 21]), slow, over=over) is None
    late = cell("A", 0.6, [5, None, None], [None, 21, 21])
    assert void(late, slow, over=over) == "A: 2 of 3 runs never get to knn 0.6"
    assert void(cell("A", 0.6, [5, 6, 8]), cell("B", 0.5, [None] * 3, [21] * 3), over=over) is None, (
        "the slower side may be late"
    )


def test_a_run_that_went_wrong() -> None:
    wrong = make_cell("B", [0.5, 0.51, 0.53], problems={"2": "diverged"})
    assert void(GOOD, wrong) == "B: seed 2 diverged"


def test_equal_encoders_must_have_something_to_lose() -> None:
    """A margin of 10 points asks for 20 points above untrained weights, which have 20."""
    over = {"expected": "equal", "margin": 10.0}
    contrast = {"kind": "equivalence", "plus": {"variant": "A"}, "minus": {"variant": "B"}}
    low, high = make_cell("A", [0.389, 0.39, 0.391]), make_cell("A", [0.409, 0.41, 0.411])
    assert void(high, OTHER, over=over, contrast=contrast) is None
    reason = void(low, OTHER, over=over, contrast=contrast)
    assert reason == "A: linear 39.0 for 20.0 of untrained weights, too little to lose 10 of it"
    assert void(low, OTHER, over={**over, "floors": False}, contrast=contrast) is None


def test_a_trend_from_untrained_weights_is_judged_by_its_last_cell() -> None:
    cells = [make_cell("untrained weights", [0.2, 0.21, 0.2]), make_cell("early", [0.25, 0.26, 0.28]), GOOD]
    contrast = {"kind": "trend", "along": {"variant": ["untrained weights", "early", "A"]}}
    assert void(*cells, contrast=contrast) == "early: linear 26.3 is not above raw pixels, 30.0"
    assert void(*cells, contrast=contrast, over={"floors_on": "last"}) is None


def test_a_correlation_asks_for_floors_of_the_best_setting_only() -> None:
    def cells(best: float) -> list[Any]:
        return [make_cell("A", {"score": [place], "linear": [0.1 + best * place / 4]}, str(place)) for place in range(5)]

    contrast = {"kind": "correlation", "x": "score", "y": "linear", "within": ["A"]}
    over = {"unit": "R", "smallest_interesting": 0.5, "paper_effect": {"value": 0.9}}
    assert void(*cells(0.3), contrast=contrast, over=over) is None
    assert void(*cells(0.1), contrast=contrast, over=over) == "A, 4: linear 20.0 is not above untrained weights, 20.0"
