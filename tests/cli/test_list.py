from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Command
from unisono.config import TABLES


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("methods", {"simclr", "byol", "supervised"}),
        ("datasets", {"digits", "fashion-mini", "folder"}),
        ("backbones", {"resnet18", "cfcl-cnn"}),
        ("partitioners", {"iid", "dirichlet"}),
        ("recipes", {"digits-smoke", "orchestra/fashion-mini"}),
        ("studies", {"orchestra-figure-5"}),
    ],
)
def test_names_have_summaries(unisono: Command, kind: str, expected: set[str]) -> None:
    summaries = json.loads(unisono("list", kind, "--json").out)
    assert expected <= set(summaries)
    assert all(summary and "``" not in str(summary) for summary in summaries.values()), summaries
    table = unisono("list", kind).out
    assert {line.split()[0] for line in table.splitlines() if line.strip() and not line.startswith(" ")} >= set(summaries)
    assert max(map(len, table.splitlines())) <= 80


def test_a_study_is_listed_with_title_claim_and_costs(unisono: Command) -> None:
    lines = unisono("list", "studies").out.splitlines()
    first = lines.index("cfcl-figure-3a  Embeddings with and without exchange")
    claim = "With exchange, points of one class lie closer together and classes are better separated."
    assert " ".join(line.strip() for line in lines[first + 1 : first + 3]) == claim
    assert lines[first + 3].strip() == "mini: about 8 minutes; paper: about 20 minutes"
    assert lines[first + 4] == ""


def test_unknown_kind_lists_the_known_ones(unisono: Command) -> None:
    result = unisono("list", "nonsense")
    assert result.code == 2
    assert "'backbones'" in result.err


def test_every_option_has_a_description_and_a_default(unisono: Command) -> None:
    found = json.loads(unisono("list", "options", "--json").out)
    assert set(found) == {f"{table}.{name}" for table, kind in TABLES.items() for name in kind.model_fields}
    assert all(len(text.partition(" (default: ")[0]) > 3 for text in found.values())
    assert found["data.limit"].endswith("(default: unset)")
    assert found["evaluation.max_train_samples"].endswith("(default: 20000)")
