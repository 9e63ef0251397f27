"""Verdicts by the rule, against closed forms and a naive reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.studies.claim_numbers import make_cell, make_claim, make_numbers, of
from unisono.studies.claims import Paper, PaperConfig
from unisono.studies.correlation import correlation
from unisono.studies.verdict_text import our_effect, paper_effect, verdict_json, verdict_words
from unisono.studies.verdicts import Verdict, Word, judge, judge_paper, judge_study, measure

EQUAL = {"expected": "equal", "margin": 1.0, "paper_effect": {"source": "picture only"}}


def verdict(points: Sequence[float], over: dict[str, Any] | None = None, **more: Any) -> Verdict:
    """Judge a claim whose paired differences are these points."""
    cells = [make_cell("A", [0.5 + value / 100 for value in points]), make_cell("B", [0.5] * len(points))]
    (found,) = judge([measure(make_claim(over, **more), "small", of(*cells))])
    return found


def equal(points: Sequence[float], side: str = "both") -> Verdict:
    contrast = {"kind": "equivalence", "side": side, "plus": {"variant": "A"}, "minus": {"variant": "B"}}
    return verdict(points, EQUAL, contrast=contrast)


def test_the_words_of_the_rule() -> None:
    """Differences m - 0.1, m, m + 0.1: the interval is m plus or minus 4.303 x 0.1 / sqrt(3) = 0.248."""
    around = [-0.1, 0.0, 0.1]
    assert verdict([6 + e for e in around]).word is Word.holds
    assert verdict([4.8 + e for e in around]).word is Word.holds, "the interval ends above the paper's 5"
    assert verdict([4.7 + e for e in around]).word is Word.by_less
    assert verdict([0.7 + e for e in around]).word is Word.by_less
    assert verdict([0.2 + e for e in around]).word is Word.fails, "not sure to be above 0, sure to be below 1"
    assert verdict([-0.2 + e for e in around]).word is Word.fails
    assert verdict([-0.3 + e for e in around]).word is Word.reversed
    assert verdict([-1.0, 1.0, 3.0]).word is Word.undecided


def test_signs_turn_where_the_paper_expects_less() -> None:
    less = {"expected": "less", "paper_effect": {"value": -5.0}}
    around = [-0.1, 0.0, 0.1]
    assert verdict([-6 + e for e in around], less).word is Word.holds
    assert verdict([-4 + e for e in around], less).word is Word.by_less
    assert verdict([0.3 + e for e in around], less).word is Word.reversed
    assert our_effect(verdict([-6 + e for e in around], less)) == "-6.0 (-6.2 to -5.8)"


def test_a_picture_only_holds_by_less_below_the_smallest_effect_of_interest() -> None:
    picture = {"paper_effect": {"value": None, "source": "picture only"}}
    assert verdict([0.7, 0.8, 0.9], picture).word is Word.holds
    assert verdict([0.5, 0.6, 0.7], picture).word is Word.by_less
    assert paper_effect(verdict([0.5, 0.6, 0.7], picture)) == "picture only"


def test_undecided_says_what_could_have_been_seen() -> None:
    """With deviation 2 and three seeds a single claim could see 3.264 x 2 points."""
    found = verdict([-1.0, 1.0, 3.0])
    assert found.could_see == pytest.approx(2 * 3.264, abs=0.002)
    assert verdict_words(found) == "undecided (could see 6.5)"
    assert our_effect(found) == "+1.0 (-4.0 to +6.0)"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-4, 8).map(lambda value: round(value, 3)), min_size=3, max_size=9, unique=True))
def test_the_verdict_is_that_of_a_naive_reference(points: list[float]) -> None:
    found = verdict(points)
    test = stats.ttest_1samp(points, 0.0)
    low, high = test.confidence_interval(0.95)
    expected = Word.undecided
    if test.pvalue < 0.05 and np.mean(points) > 0:
        expected = Word.by_less if high < 5 else Word.holds
    elif high < 1:
        expected = Word.reversed if high < 0 else Word.fails
    assert found.word is expected
    assert found.p == pytest.approx(test.pvalue, rel=1e-6)
    assert found.difference is not None
    assert found.difference.interval == pytest.approx((low, high))


def test_of_several_rivals_each_must_pass_and_the_weakest_is_shown() -> None:
    claim = make_claim(contrast={"plus": {"variant": "A"}, "minus": {"variant": ["B", "C"]}})
    a = make_cell("A", [0.60, 0.61, 0.62])
    strong, weak = make_cell("B", [0.50, 0.51, 0.5205]), make_cell("C", [0.59, 0.61, 0.61])
    (both,) = judge([measure(claim, "small", of(a, strong, make_cell("C", [0.53, 0.54, 0.5505])))])
    assert (both.word, both.label) == (Word.holds, "A - C")
    (one,) = judge([measure(claim, "small", of(a, strong, weak))])
    assert (one.word, one.label) == (Word.undecided, "A - C")
    assert one.p == pytest.approx(stats.ttest_rel([0.60, 0.61, 0.62], [0.59, 0.61, 0.61]).pvalue)
    (behind,) = judge([measure(claim, "small", of(a, strong, make_cell("C", [0.65, 0.66, 0.671])))])
    assert (behind.word, behind.label) == (Word.reversed, "A - C"), "significant, and on the wrong side"


def test_holm_corrects_headline_and_main_claims_and_no_others() -> None:
    """Differences of 1.5, 2 and 2.5 points have p = 0.020: below 0.05 alone and times two, not times three."""
    points = [0.015, 0.02, 0.025]
    cells = [
        make_cell("A", [0.5 + value for value in points]),
        make_cell("B", [0.5] * 3),
        make_cell("Z", [0.9] * 3, problems={"1": "diverged"}),
    ]
    void = make_claim({"id": "void", "priority": "main"}, contrast={"plus": {"variant": "Z"}, "minus": {"variant": "B"}})
    missing = make_claim({"id": "missing", "priority": "main"}, contrast={"plus": {"variant": "Y"}, "minus": {"variant": "B"}})

    def words(*priorities: str) -> list[tuple[str, float | None]]:
        claims = [make_claim({"priority": priority}) for priority in priorities]
        found = judge([measure(claim, "small", of(*cells)) for claim in (void, *claims, missing)])
        return [(str(one.word), one.p) for one in found[1:-1]]

    p = float(stats.ttest_1samp(points, 0).pvalue)
    assert words("main") == [("holds by less", pytest.approx(p))], "what is void or was not run is not counted"
    assert words("main", "headline") == [("holds by less", pytest.approx(2 * p))] * 2
    assert words("main", "headline", "main") == [("undecided", pytest.approx(3 * p))] * 3
    assert words("main", "minor", "minor") == [("holds by less", pytest.approx(p))] * 3
    found = judge([measure(make_claim({"priority": "main"}), "small", of(*cells))] * 20)
    assert found[0].could_see == pytest.approx(14.65 * 0.5, abs=0.01)


def test_equality_needs_the_90_percent_interval_inside() -> None:
    """Differences d - s, d, d + s: half widths 2.920 s / sqrt(3) at 90% and 4.303 s / sqrt(3) at 95%."""
    s = 0.3
    narrow, wide = 2.91999 * s / math.sqrt(3), 4.30265 * s / math.sqrt(3)

    def at(mean: float, side: str = "both") -> Word:
        return equal([mean - s, mean, mean + s], side).word

    assert at(1 - narrow - 0.01) is Word.holds
    assert at(1 - narrow + 0.01) is Word.undecided
    assert at(1 + wide - 0.01) is Word.undecided
    assert at(1 + wide + 0.01) is Word.fails
    assert at(-1 - wide - 0.01) is Word.fails
    assert at(5.0, "not less") is Word.holds
    assert at(-1 - wide - 0.01, "not less") is Word.fails
    assert at(-5.0, "not greater") is Word.holds
    assert at(1 + wide + 0.01, "not greater") is Word.fails


def test_equality_says_which_margin_would_have_been_needed() -> None:
    both, one = equal([-1.0, 0.5, 2.0]), equal([-3.0, -1.5, 0.0], "not less")
    assert both.could_see == pytest.approx(1.5 * 2.66, abs=0.01)
    assert one.could_see == pytest.approx(1.5 * 2.297, abs=0.01)
    assert verdict_words(both) == "undecided (a margin of 4.0)"


def test_the_p_of_equality_is_that_of_two_one_sided_tests() -> None:
    points = [0.1, 0.3, -0.2, 0.4]
    upper = stats.ttest_1samp(points, 1.0, alternative="less").pvalue
    lower = stats.ttest_1samp(points, -1.0, alternative="greater").pvalue
    assert equal(points).p == pytest.approx(max(upper, lower))
    assert equal(points, "not less").p == pytest.approx(lower)
    assert equal(points, "not greater").p == pytest.approx(upper)


def test_differences_that_do_not_vary_leave_no_doubt() -> None:
    bytes_sent = {
        "unit": "percent of minus",
        "metric": "megabytes",
        "floors": False,
        "expected": "less",
        "paper_effect": {"value": None},
    }
    cells = [make_cell("A", {"megabytes": [30.0] * 3}), make_cell("B", {"megabytes": [40.0] * 3})]
    (found,) = judge([measure(make_claim(bytes_sent), "small", of(*cells))])
    assert found.word is Word.holds
    assert our_effect(found) == "-25.0% (-25.0 to -25.0)"


def test_fewer_than_three_seeds_are_not_run() -> None:
    found = verdict([1.0, 2.0])
    assert (found.word, verdict_words(found)) == (Word.not_run, "not run at this scale: 2 seeds in common, 3 are needed")
    (lacking,) = judge([measure(make_claim({"lacks": "the study has no C"}), "small", of())])
    assert verdict_words(lacking) == "not run at this scale: the study has no C"
    (nothing,) = judge([measure(make_claim(), "small", {})])
    assert verdict_words(nothing) == "not run at this scale"
    assert our_effect(nothing) == ""


def correlated(noise: float, below: bool = False) -> Verdict:
    random = np.random.default_rng(3)
    claim = make_claim(
        {"unit": "R", "smallest_interesting": 0.5, "paper_effect": {"value": 0.87}, "metric": "knn", "priority": "main"},
        contrast={"kind": "correlation", "x": "score", "y": "knn", "within": ["A", "B"]},
    )
    cells = []
    for variant in ("A", "B"):
        for place in range(16):
            score = place / 16
            knn = 0.1 if below else 0.4 + 0.3 * score + noise * float(random.normal())
            cells.append(make_cell(variant, {"score": [score], "knn": [knn]}, str(place)))
    (found,) = judge([measure(claim, "small", of(*cells))])
    return found


def test_a_correlation_is_judged_by_a_bootstrap() -> None:
    clear, middling, none = correlated(0.02), correlated(0.1), correlated(3.0)
    assert clear.word is Word.holds
    assert middling.word is Word.by_less
    assert none.word is Word.fails
    assert (clear.p, clear.could_see) == (None, None)
    for found in (clear, middling, none):
        assert found.difference is not None
        assert found.difference.interval is not None
        assert -1 <= found.difference.interval[0] < (found.difference.mean or 0) < found.difference.interval[1] <= 1
    assert correlated(0.0, below=True).word is Word.not_run, "a metric that does not vary"


def test_the_mean_of_a_correlation_is_that_over_variants() -> None:
    claim = make_claim({"floors": False}, contrast={"kind": "correlation", "x": "x", "y": "y", "within": ["A", "B"]})
    data = {"A": [(1, 2), (2, 3), (3, 5), (4, 4)], "B": [(1, 5), (2, 3), (3, 4), (4, 1)]}
    cells = [make_cell(name, {"x": [x], "y": [y]}, str(i)) for name, points in data.items() for i, (x, y) in enumerate(points)]
    measured = measure(claim, "small", of(*cells))
    expected = [np.corrcoef(*zip(*points, strict=True))[0, 1] for points in data.values()]
    assert measured.differences[0][1].mean == pytest.approx(np.mean(expected))
    assert correlation(data["A"]) == pytest.approx(expected[0])


def test_a_paper_is_judged_at_the_scale_of_each_claim_and_at_others_that_were_run() -> None:
    points = [0.015, 0.02, 0.025]
    cells = [make_cell("A", [0.5 + value for value in points]), make_cell("B", [0.5] * 3)]
    claims = tuple(
        make_claim({"id": id, "scale": scale, "priority": "main"}) for id, scale in (("one", "small"), ("two", "long"))
    )
    paper = Paper("p", PaperConfig(title="P", reference="R"), claims)
    found = judge_paper(paper, [make_numbers(*cells), make_numbers(*cells, scale="mini"), make_numbers(study="t")])
    assert [(one.claim.id, one.scale, str(one.word)) for one in found] == [
        ("one", "small", "holds by less"),
        ("one", "mini", "undecided"),
        ("two", "long", "not run"),
        ("two", "mini", "undecided"),
        ("two", "small", "undecided"),
    ], "at its own scale one claim is corrected alone, at other scales three together"
    study = judge_study([paper], make_numbers(*cells))
    assert [(one.claim.id, one.scale) for one in study] == [("one", "small"), ("two", "small")]
    assert judge_study([paper], make_numbers(*cells, study="other")) == []
    assert verdict_json(found[0])["interval"] == pytest.approx(
        (2 - 0.5 * 4.30265 / 3**0.5, 2 + 0.5 * 4.30265 / 3**0.5), rel=1e-4
    )
