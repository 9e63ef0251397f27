"""A changed default is noticed, because kept results were run with the old one; a new option is not."""

from pathlib import Path

import pytest

from tests.studies.claim_numbers import make_cell, make_numbers
from unisono.studies import kept_defaults
from unisono.studies.kept_defaults import add_defaults, changed_defaults
from unisono.studies.numbers import defaults

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_defaults_of_the_results_in_the_docs_are_those_of_today() -> None:
    assert (RESULTS / kept_defaults.FILE).is_file()
    assert changed_defaults(RESULTS) == []


def test_a_changed_default_is_named_and_a_new_option_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed_defaults(tmp_path) == []
    cells = (make_cell(name, [0.5], "cross-device") for name in ("Orchestra", "SimCLR"))
    numbers = make_numbers(*cells, study="orchestra-table-1", scale="mini")
    add_defaults(tmp_path, [numbers])
    assert changed_defaults(tmp_path) == []

    def tomorrow(method: str) -> dict[str, object]:
        changed = {"training.momentum": 0.5} if method == "simclr" else {}
        return {**defaults(method), **changed, "training.new": None}

    monkeypatch.setattr(kept_defaults, "defaults", tomorrow)
    (sentence,) = changed_defaults(tmp_path)
    assert sentence.startswith(
        "The default of training.momentum was 0.9 for simclr when results were kept, and is 0.5: set the"
    )
    add_defaults(tmp_path, [numbers])
    assert changed_defaults(tmp_path) == [sentence]
