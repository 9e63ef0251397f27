"""``unisono config``, and the options of a study's cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from unisono.config import resolve
from unisono.recipes import build_tree


def sources(text: str) -> dict[str, str]:
    """The source of every option by its full name."""
    found, table = {}, ""
    for line in text.splitlines():
        table = line.strip("[]") if line.startswith("[") else table
        option, _, source = line.partition("  # ")
        if " = " in option and source:
            found[f"{table}.{option.split(' = ')[0]}"] = source
    return found


def test_every_option_has_its_source(unisono: Command) -> None:
    result = unisono("config", "orchestra/cifar10-silo", "--method", "byol", "--set", "run.seed=3")
    assert (result.code, result.err) == (0, "")
    found = sources(result.out)
    assert found["method.name"] == "--method"
    assert found["method.ema"] == "orchestra/cifar10-silo [methods.byol]"
    assert found["training.batch_size"] == "orchestra/cifar10-silo"
    assert found["data.dataset"] == "orchestra/cifar10"
    assert found["run.seed"] == "--set"
    assert found["run.directory"] == "default"
    assert sources(unisono("config", "byol").out)["views.preset"] == "method default"
    assert max(map(len, result.out.splitlines())) <= 120


@pytest.mark.parametrize("words", [(), ("--plain",)])
@pytest.mark.parametrize("name", ["orchestra/cifar10-silo", "cfcl/fashion-mini", "demo"])
def test_the_text_is_a_recipe_of_the_same_run(unisono: Command, name: str, words: tuple[str, ...]) -> None:
    Path("again.toml").write_text(unisono("config", name, "--set", "run.name=a-b", *words).out)
    assert resolve(build_tree("again.toml")) == resolve(build_tree(name, None, ["run.name=a-b"]))


def test_plain_has_no_comments_and_notes_are_comments(unisono: Command) -> None:
    words = ("config", "orchestra/cifar10", "--method", "fedca")
    assert unisono(*words).out.startswith("# note: orchestra/cifar10 has no numbers of its own for fedca")
    assert "#" not in unisono(*words, "--plain").out


def test_mistakes(unisono: Command) -> None:
    assert "uv/semi is a fragment" in unisono("config", "uv/semi").sentence
    assert "Did you mean 'orchestra/cifar10'?" in unisono("config", "orchestra/cifar12").sentence
    assert "Did you mean 'byol'?" in unisono("config", "demo", "--method", "biol").sentence
    assert "training.rate is not a known option" in unisono("config", "demo", "--set", "training.rate=1").sentence


def test_a_run_notes_that_a_method_has_no_numbers_of_its_own(unisono: Command) -> None:
    small = (
        "--workers",
        0,
        "--rounds",
        1,
        "--set",
        "data.limit=64",
        "--set",
        "data.test_limit=20",
        "--set",
        "report.enabled=false",
    )
    result = unisono("run", "digits-smoke", "--method", "simsiam", *small)
    assert "note: digits-smoke has no numbers of its own for simsiam" in result.out


def test_cells_of_a_study(unisono: Command) -> None:
    words = ("study", "orchestra-table-1", "--only", "BYOL", "--only", "cross-silo")
    result = unisono(*words, "--dry-run", "--config", "--set", "training.batch_size=8")
    found = sources(result.out)
    assert result.out.count("[method]") == 1, "the first seed stands for all"
    assert found["method.name"] == found["evaluation.probe_every"] == "study"
    assert found["method.ema"] == "orchestra/fashion-mini [methods.byol]"
    assert found["training.batch_size"] == "--set"
    assert "give --dry-run too" in unisono(*words, "--config").sentence
    assert "give one of the two" in unisono(*words, "--dry-run", "--config", "--json").sentence
    assert not Path("runs").exists()
