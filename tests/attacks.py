"""Attacks that tests try: a decorator, and the table in docs/security.md that is made of its words."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T", bound=Callable[..., object])
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"


def attack(number: str, tried: str, outcome: str) -> Callable[[T], T]:
    """Name the attack that a test tries; ``scripts/attacks.py`` puts it into the table.

    Args:
        number: ``A`` for a server's, ``B`` for anybody else's, and a number; the same attack may have several tests.
        tried: what the attacker does, without a full stop.
        outcome: what comes of it, without a full stop.
    """
    assert re.fullmatch(r"[AB]\d+", number)
    assert not tried.endswith(".")
    assert not outcome.endswith(".")
    return lambda test: test


def collect() -> list[tuple[str, str, str, str]]:
    """All attacks of the tests: number, what is tried, what comes of it, file and name of the test."""
    rows = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for call in getattr(node, "decorator_list", []):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "attack":
                    assert isinstance(node, ast.FunctionDef)
                    assert node.name.startswith("test_"), node.name
                    number, tried, outcome = (ast.literal_eval(argument) for argument in call.args)
                    rows.append((number, tried, outcome, f"{path.relative_to(ROOT)}::{node.name}"))
    return sorted(rows, key=lambda row: (row[0][0], int(row[0][1:]), row[3]))


def table() -> str:
    """The table as Markdown."""
    lines = ["| | attack | result | test |", "|---|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {number} | {tried} | {outcome} | `{test}` |" for number, tried, outcome, test in collect())]
    )


def page_with_table(page: str) -> str:
    """The page with the table in its place."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"
