"""Pages of prose about results: their tables and figures are those of the kept numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.studies.claim_numbers import make_cell, make_numbers
from unisono.core.errors import UserError
from unisono.studies.claims import read_papers
from unisono.studies.findings import BLOCK, NOT_RUN, fill_page
from unisono.studies.kept_results import read_kept

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted(DOCS.glob("findings/*.md")), DOCS / "choosing-a-method.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_tables_and_figures_of_the_kept_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    filled = fill_page(text, read_papers(), read_kept(DOCS / "results"), "figures" if page.parent == DOCS else "../figures")
    assert BLOCK.search(text)
    assert filled.text == text, "run python scripts/claims.py page"
    for name, svg in filled.figures.items():
        assert (DOCS / "figures" / name).read_bytes() == svg, f"{name}: run python scripts/claims.py page"


def block(words: str) -> str:
    return f"Before.\n<!-- {words} -->\nold\n<!-- end -->\nAfter.\n"


def test_a_table_has_mean_deviation_and_seeds() -> None:
    cells = [make_cell("A", [0.70, 0.72, 0.74], "even"), make_cell("B", [0.5, 0.5], "uneven")]
    numbers = [make_numbers(*cells, study="some-study", scale="mini")]
    text = fill_page(block("table some-study mini linear"), read_papers(), numbers).text
    assert "| A | 3 | 72.0 ± 2.0 |  |" in text
    assert "| B | 2 |  | 50.0 ± 0.0 |" in text
    assert "old" not in text
    assert text.startswith("Before.")
    assert text.endswith("After.\n")


def test_a_mean_that_is_not_above_the_floors_is_marked() -> None:
    floors = {"raw pixels": {"linear": 0.5}, "untrained weights": {"linear": 0.6}}
    cells = [make_cell(name, [value] * 3, floors=floors) for name, value in (("A", 0.6), ("B", 0.61))]
    text = fill_page(
        block("table some-study mini linear"), read_papers(), [make_numbers(*cells, study="some-study", scale="mini")]
    ).text
    assert "| A | 3 | 60.0 ± 0.0 (void) |" in text
    assert "| B | 3 | 61.0 ± 0.0 |" in text


def test_what_was_not_run_is_said() -> None:
    for words in ("table some-study mini linear", "figure some-study mini linear", "effects orchestra", "verdicts orchestra"):
        filled = fill_page(block(words), read_papers(), [])
        assert NOT_RUN in filled.text
        assert not filled.figures


def test_a_figure_has_the_values_of_its_numbers() -> None:
    numbers = [make_numbers(make_cell("A", [0.70, 0.72, 0.74], "even"), study="some-study", scale="mini")]
    other = [make_numbers(make_cell("A", [0.70, 0.72, 0.75], "even"), study="some-study", scale="mini")]
    pages = [fill_page(block("figure some-study mini linear"), read_papers(), found) for found in (numbers, numbers, other)]
    first, again, changed = (page.figures["some-study-mini-linear.svg"] for page in pages)
    assert first == again
    assert first != changed
    assert "](figures/some-study-mini-linear.svg)" in pages[0].text


def test_every_row_of_a_figure_has_the_floor_of_its_own_runs() -> None:
    rows = {"A": 0.4, "B": 0.4, "C": 0.6}
    cells = [make_cell(name, [0.5] * 2, floors={"untrained weights": {"linear": floor}}) for name, floor in rows.items()]
    numbers = [make_numbers(*cells, study="some-study", scale="mini")]
    svg = fill_page(block("figure some-study mini linear"), read_papers(), numbers).figures["some-study-mini-linear.svg"]
    places = re.findall(r'd="M ([\d.]+) [\d.]+ \nL ([\d.]+) [\d.]+ \n" clip-path[^>]*stroke-dasharray', svg.decode())
    assert [top == bottom for top, bottom in places] == [True] * 3
    assert [float(top) > float(places[0][0]) for top, _ in places] == [False, False, True]


def test_a_wrong_block_is_a_sentence() -> None:
    with pytest.raises(UserError, match="There is no paper 'orchestre': give one of orchestra"):
        fill_page(block("verdicts orchestre"), read_papers(), [])
    with pytest.raises(UserError, match="lacks words"):
        fill_page(block("table some-study"), read_papers(), [])
