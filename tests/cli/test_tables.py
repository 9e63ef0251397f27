from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from unisono.cli.tables import decimal, floor_table, megabytes, probe_table, thinned


def text(renderable: object, width: int = 80) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(renderable)
    return file.getvalue()


@given(st.integers(0, 200), st.integers(2, 12))
def test_thinned_keeps_first_last_and_order(length: int, most: int) -> None:
    kept = thinned(range(length), most)
    assert len(kept) == min(length, most)
    assert kept == sorted(set(kept))
    if length:
        assert (kept[0], kept[-1]) == (0, length - 1)


@pytest.mark.parametrize(
    ("value", "expected"), [(0.5, "0.5000"), (0.0, "0.0000"), (None, ""), (1.25e-5, "1.25e-05"), (-123456.0, "-1.235e+05")]
)
def test_decimal(value: float | None, expected: str) -> None:
    assert decimal(value) == expected


def test_megabytes() -> None:
    assert megabytes(1_234_567) == "1.2 MB"


def test_probe_table_has_a_row_per_probe_and_the_last_round() -> None:
    probes = {round: {"linear": round / 100, "knn": 0.5} for round in range(5, 101, 5)}
    lines = text(probe_table(probes)).splitlines()
    assert lines[0].split()[-1] == "100"
    assert next(line for line in lines if line.startswith("linear")).split()[-1] == "1.0000"
    assert max(map(len, lines)) <= 80


def test_probe_table_leaves_a_gap_where_a_probe_is_missing() -> None:
    table = text(probe_table({1: {"linear": 0.25}, 2: {"linear": 0.5, "balance": 0.75}}))
    assert "0.2500" in table
    assert next(line for line in table.splitlines() if line.startswith("balance")).split() == ["balance", "0.7500"]


def test_long_heads_break_between_words_where_they_must() -> None:
    scores = {"linear": 0.5, "knn": 0.5, "labels-10": 0.5, "cluster-balance": 0.5, "cluster-accuracy": 0.5}
    lines = text(floor_table({"untrained weights": scores, "this run": scores})).splitlines()
    assert lines[0].split() == ["labels-", "cluster-", "cluster-"]
    assert lines[1].split() == ["linear", "knn", "10", "balance", "accuracy"]
    assert any(line.startswith("untrained weights ") for line in lines)
    del scores["cluster-balance"]
    assert "cluster-accuracy" in text(floor_table({"untrained weights": scores, "this run": scores}))
