"""The pages of reference are what the program says now."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import typer

from unisono.cli.main import app
from unisono.config import TABLES
from unisono.core.method import methods

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_pages_are_current(reference: ModuleType) -> None:
    for name, text in reference.pages().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, f"{name}: run 'python scripts/reference.py write'"


def test_a_stale_page_is_named(
    reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in reference.pages().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    kept = tmp_path / "docs" / "results"
    kept.symlink_to(ROOT / "docs" / "results")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    assert reference.main(["check"]) == 0
    readme = tmp_path / "README.md"
    readme.write_text(re.sub(r"(\| FedMCC \| )\d+", r"\g<1>99", readme.read_text()))
    assert reference.main(["check"]) == 1
    assert capsys.readouterr().out == "README.md: not current\n"
    assert reference.main(["write"]) == 0
    assert reference.main(["check"]) == 0


def test_every_command_and_option_is_there() -> None:
    commands = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    top = typer.main.get_command(app)
    names = {f"unisono {name}" for name, command in top.commands.items() if not hasattr(command, "commands")}  # type: ignore[attr-defined]
    names |= {f"unisono deploy {name}" for name in top.commands["deploy"].commands}  # type: ignore[attr-defined]
    assert set(re.findall(r"^### (unisono .+)$", commands, re.M)) == names
    for name in names:
        assert f"\n{name} " in commands or f"\n{name}\n" in commands, f"{name} has no example"
    options = (ROOT / "docs" / "reference" / "options.md").read_text(encoding="utf-8")
    for table, section in TABLES.items():
        part = options.partition(f"\n## [{table}]\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `([a-z_0-9]+)`", part, re.M) == [*section.model_fields]
    for name in (name for name in methods if methods[name].__module__.startswith("unisono.")):
        part = options.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        assert re.findall(r"^\| `([a-z_0-9]+)`", part, re.M) == [*methods[name].Config.model_fields]


def test_ranges_are_in_words(reference: ModuleType) -> None:
    assert (
        reference._range({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, {})
        == "number ≥\N{NO-BREAK SPACE}0, <\N{NO-BREAK SPACE}1"
    )
    assert (
        reference._range({"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "null"}]}, {})
        == "whole number >\N{NO-BREAK SPACE}0"
    )
    assert reference._range({"enum": ["a", "b"]}, {}) == f"`{json.dumps('a')}`, `{json.dumps('b')}`"


def test_speed_is_that_of_the_benchmarks(reference: ModuleType, tmp_path: Path) -> None:
    header = ["", "s per round", "times unisono's", "start-up s", "peak MB", "wanted"]
    part = {"machine": "a machine; a system", "day": "2026-11-18"}
    table = {"text": "", "header": header}
    small = {
        **table,
        "title": "Frameworks: small",
        "rows": [["unisono", "1.0", "1", "2", "300", ""], ["Flower", "3.1", "3.1", "9", "800", ""]],
    }
    large = {**table, "title": "Frameworks: large", "rows": [["unisono", "5.0", "1", "2", "700", ""]]}
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"small": {**part, "tables": [small]}, "large": {**part, "tables": [large]}}))
    text = reference.speed_table(file)
    assert "a machine: <a href" in text
    assert "<th>a round of SimCLR</th><th>small</th><th>large</th>" in text
    assert "<td>unisono</td><td>1.0 s, 300 MB</td><td>5.0 s, 700 MB</td>" in text
    assert "<td>Flower</td><td>3.1 s, 800 MB</td><td></td>" in text
    assert reference.speed_table(tmp_path / "none.json") == ""
