"""The page on security says what the tests try."""

from __future__ import annotations

from tests.attacks import PAGE, collect, page_with_table


def test_the_table_of_attacks_is_that_of_the_tests() -> None:
    page = PAGE.read_text()
    assert page == page_with_table(page), "run 'python scripts/attacks.py'"


def test_every_attack_has_its_own_words() -> None:
    rows = collect()
    assert len({(tried, outcome) for _, tried, outcome, _ in rows}) == len(rows)


def test_every_known_attack_is_tried() -> None:
    """27 of a hostile server, 11 of others, and what was found since."""
    known = {f"A{number}" for number in range(1, 28)} | {f"B{number}" for number in range(1, 12)}
    assert known - {number for number, *_ in collect()} == set()
