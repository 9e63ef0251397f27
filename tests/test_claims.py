"""The table of claims: every study is in it, and every study in it exists."""

from __future__ import annotations

import re
from pathlib import Path

from unisono.studies.study import list_studies

CLAIMS = Path(__file__).parents[1] / "docs" / "claims.md"


def test_claims_and_studies_know_each_other() -> None:
    rows = [line for line in CLAIMS.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row.split("|")[2])}
    assert named == set(list_studies())
    assert all(row.split("|")[3].strip() for row in rows), "a claim without a word on what was seen"
    assert not any("not run" in row for row in rows), "a claim that nobody tested"
