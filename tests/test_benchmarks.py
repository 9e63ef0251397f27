"""The page of benchmarks is what was measured, and shows nothing of the machine but its kind."""

from __future__ import annotations

import re

import pytest
from benchmarks.__main__ import OTHERS, PARTS, main
from benchmarks.page import PAGE, page, read
from benchmarks.precision import CASES
from benchmarks.tables import Table

from unisono.models.backbones import backbones

TABLE = Table("Speed", "Seconds.", ["", "s"], [["ours", "1.0"], ["a bare loop", "12.5"]])


def test_a_table_is_text_and_markdown() -> None:
    assert TABLE.as_text() == "Speed\nSeconds.\n                s\nours          1.0\na bare loop  12.5"
    assert "| ours | 1.0 |\n| a bare loop | 12.5 |" in TABLE.as_markdown()
    assert Table(**TABLE.as_json()) == TABLE


def test_the_page_has_all_results_that_were_kept() -> None:
    assert PAGE.read_text() == page(read(), PARTS)


def test_the_page_names_no_folder_and_no_host() -> None:
    assert not re.search(r"(/home|/work|/root|/tmp|https?://)", PAGE.read_text())


def test_results_of_other_days_are_marked() -> None:
    results = {
        name: {"machine": "a machine", "day": day, "tables": [TABLE.as_json()]}
        for name, day in (("views", "2026-01-01"), ("engine", "2026-01-02"), ("cnn", "2026-01-01"))
    }
    text = page(results, PARTS)
    assert "Machine: a machine. Measured on 2026-01-01: cnn, views.\n" in text
    assert "Machine: a machine. Measured on 2026-01-02: engine.\n" in text
    assert "Not measured on this version: resnet, precision, " in text


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(SystemExit, match=r"There is no part 'view'\. Known: cnn, .*views"):
        main(["view"])
    assert not set(PARTS) & set(OTHERS)


def test_every_kind_of_network_is_measured_in_every_precision() -> None:
    families = {re.sub(r"\d.*", "", name) if name != "resnet1d" else name for name in backbones}
    assert {re.sub(r"\d.*", "", case.backbone) if case.backbone != "resnet1d" else case.backbone for case in CASES} == families
