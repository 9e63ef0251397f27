"""Contrasts by seed against naive references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.studies.claim_numbers import make_cell, make_claim, make_numbers, of
from unisono.core.errors import UserError
from unisono.studies.claims import ClaimConfig
from unisono.studies.contrasts import Entry, MissingError, contrast_entries, rise, used_cells

A = make_cell("A", [0.50, 0.52, 0.58])
B = make_cell("B", [0.48, 0.51, 0.50])
C = make_cell("C", [0.40, 0.47, 0.44])


def samples(claim: ClaimConfig, *cells: Any) -> list[list[float]]:
    return [list(entry.sample.values()) for entry in entries(claim, *cells)]


def entries(claim: ClaimConfig, *cells: Any) -> list[Entry]:
    return contrast_entries(claim, "small", of(*cells))


def test_a_difference_is_in_points_for_every_seed_that_both_have() -> None:
    (found,) = entries(make_claim(), A, make_cell("B", [0.48, None, 0.50, 0.9]))
    assert found.sample == pytest.approx({0: 2.0, 2: 8.0})


def test_one_cell_goes_with_every_rival_and_lists_go_together_by_place() -> None:
    one = make_claim(contrast={"plus": {"variant": "A"}, "minus": {"variant": ["B", "C"]}})
    assert [entry.label for entry in entries(one, A, B, C)] == ["A - B", "A - C"]
    assert samples(one, A, B, C) == [pytest.approx([2, 1, 8]), pytest.approx([10, 5, 14])]
    both = make_claim(contrast={"plus": {"variant": ["A", "B"]}, "minus": {"variant": ["B", "C"]}})
    assert samples(both, A, B, C) == [pytest.approx([2, 1, 8]), pytest.approx([8, 4, 6])]


def test_variants_and_settings_of_one_side_are_crossed() -> None:
    cells = [
        make_cell(name, [base + add], setting)
        for name, base in (("A", 0.5), ("B", 0.4))
        for setting, add in (("x", 0.01), ("y", 0.03))
    ]
    sides = {"plus": {"variant": "A", "setting": ["x", "y"]}, "minus": {"variant": "B", "setting": ["x", "y"]}}
    assert samples(make_claim(contrast=sides), *cells) == [pytest.approx([10]), pytest.approx([10])]
    crossed = {"plus": {"variant": ["A", "B"], "setting": ["x", "y"]}, "minus": {"constants": [0.5]}}
    assert samples(make_claim(contrast=crossed), *cells) == [pytest.approx([v]) for v in (1, 3, -9, -7)]


def test_the_mean_of_entries_is_taken_for_every_seed() -> None:
    claim = make_claim(contrast={"plus": {"variant": "A"}, "minus": {"variant": ["B", "C"]}, "over": "mean"})
    assert samples(claim, A, B, C) == [pytest.approx([6, 3, 11])]


def test_a_difference_of_differences_may_have_two_metrics() -> None:
    pair = {"plus": {"variant": "A"}, "minus": {"variant": "B"}}
    contrast = {"kind": "difference of differences", "first": pair, "second": {**pair, "metric": "knn"}}
    cells = [
        make_cell("A", {"linear": [0.9, 0.8], "knn": [0.5, 0.5]}),
        make_cell("B", {"linear": [0.6, 0.6], "knn": [0.4, 0.2]}),
    ]
    assert samples(make_claim(contrast=contrast), *cells) == [pytest.approx([30 - 10, 20 - 30])]


def test_a_trend_is_the_rise_of_the_least_squares_line() -> None:
    cells = [make_cell("A", [0.1 * place**2, 0.3 * place], str(place)) for place in range(4)]
    contrast = {"kind": "trend", "along": {"variant": "A", "setting": ["0", "1", "2", "3"]}}
    (found,) = samples(make_claim(contrast=contrast), *cells)
    slope = np.polyfit([0, 1, 2, 3], [0, 0.1, 0.4, 0.9], 1)[0]
    assert found == pytest.approx([100 * 3 * slope, 100 * 3 * 0.3])
    assert rise([2.0, 5.0]) == 3.0


def test_rounds_are_entries_and_a_trend_may_go_over_them() -> None:
    looks = {"linear": {"2": [0.3, 0.4], "10": [0.5, 0.7], "9": [0.4, 0.4]}}
    less = {"linear": {"2": [0.2, 0.3], "10": [0.3, 0.3]}}
    cells = [make_cell("A", [0.5, 0.7], looks=looks), make_cell("B", [0.3, 0.3], looks=less)]
    claim = make_claim(contrast={"plus": {"variant": "A"}, "minus": {"variant": "B"}, "over": "rounds"})
    assert [entry.label for entry in entries(claim, *cells)] == ["round 2", "round 10"]
    assert samples(claim, *cells) == [pytest.approx([10, 10]), pytest.approx([20, 40])]
    trend = make_claim(contrast={"kind": "trend", "along": {"variant": "A"}, "over": "rounds"})
    assert samples(trend, *cells) == [pytest.approx([20, 100 * rise([0.4, 0.4, 0.7])])]


def test_the_best_setting_is_a_number() -> None:
    cells = [
        make_cell("A", [0.5, 0.6], "50"), make_cell("A", [0.6, 0.5], "100"),
        make_cell("B", [0.5, 0.6], "50"), make_cell("B", [0.4, 0.5], "100"),
    ]  # fmt: skip
    sides = {name: {"variant": variant, "setting": ["50", "100"]} for name, variant in (("plus", "A"), ("minus", "B"))}
    claim = make_claim({"unit": "steps"}, contrast={**sides, "over": "best setting"})
    assert samples(claim, *cells) == [[50.0, 0.0]]


def test_units() -> None:
    cells = [make_cell("A", {"seconds": [2.0, 3.0]}), make_cell("B", {"seconds": [4.0, 2.0]})]
    for unit, expected in (("percent of minus", [-50, 50]), ("log ratio", [math.log(0.5), math.log(1.5)]), ("rounds", [-2, 1])):
        assert samples(make_claim({"unit": unit, "metric": "seconds"}), *cells) == [pytest.approx(expected)]


def test_a_run_that_never_gets_there_counts_with_its_end() -> None:
    metric = "rounds to knn 0.6"
    late = make_cell("B", {metric: [8, None, 12]}, unreached={metric: [None, 21, None]})
    claim = make_claim({"metric": metric, "unit": "rounds"})
    assert samples(claim, make_cell("A", {metric: [5, 6, 7]}), late) == [[-3, -15, -5]]


def test_a_metric_and_a_contrast_may_be_others_at_another_scale() -> None:
    claim = make_claim({"at": {"mini": {"metric": "knn", "contrast": {"plus": {"variant": "A"}, "minus": {"variant": "C"}}}}})
    numbers = {"s": make_numbers(make_cell("A", {"knn": [0.5]}), make_cell("C", {"knn": [0.3]}), scale="mini")}
    (found,) = contrast_entries(claim, "mini", numbers)
    assert found.sample == pytest.approx({0: 20.0})


def test_what_was_not_run_is_named() -> None:
    with pytest.raises(MissingError, match="s has no results of B"):
        entries(make_claim(), A)
    with pytest.raises(MissingError, match="s has no linear of B"):
        entries(make_claim(), A, make_cell("B", {"knn": [0.5]}))
    with pytest.raises(MissingError, match=r"^$"):
        contrast_entries(make_claim(), "small", {})
    other = make_claim(contrast={"plus": {"variant": "A"}, "minus": {"variant": "B", "study": "t"}})
    with pytest.raises(MissingError, match="no results of t"):
        entries(other, A)
    found = contrast_entries(other, "small", of(A) | {"t": make_numbers(B, study="t")})
    assert list(found[0].sample.values()) == pytest.approx([2, 1, 8])


def test_used_cells_have_their_roles() -> None:
    claim = make_claim(contrast={"plus": {"variant": "A"}, "minus": {"variant": ["B", "C"]}})
    assert [(one.cell.variant, one.role) for one in used_cells(claim, "small", of(A, B, C))] == [
        ("A", "plus"),
        ("B", "minus"),
        ("C", "minus"),
    ]


@pytest.mark.parametrize(
    ("over", "contrast", "sentence"),
    [
        ({"expected": "equal"}, None, "expected = 'equal' and margin belong together"),
        ({"margin": 1.0, "expected": "equal"}, None, "'equivalence' and expected = 'equal' belong together"),
        ({"at": {"tiny": {}}}, None, "at.tiny is not a scale; known are mini, small, long, paper"),
        ({}, {"kind": "trend"}, "needs along"),
        (
            {},
            {"plus": {"variant": ["A", "B"]}, "minus": {"variant": ["A", "B", "C"]}},
            "2 and 3 cells, which cannot go together",
        ),
        ({"unit": "metres"}, None, "claim.0.unit"),
    ],
)
def test_a_mistake_in_a_claim_is_a_sentence(over: dict[str, Any], contrast: dict[str, Any] | None, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        make_claim(over, contrast=contrast)
    assert sentence in str(error.value)
