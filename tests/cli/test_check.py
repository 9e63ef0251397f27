"""``unisono check``: a line per check, a summary, and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from unisono.testing import CHECKS

SOUND = Path(__file__).parents[2] / "examples" / "align_uniform.py"


def test_a_method_of_the_package(unisono: Command) -> None:
    result = unisono("check", "federated-kmeans")
    assert result.code == 0
    lines = result.out.splitlines()
    assert [line.split()[:2] for line in lines[: len(CHECKS)]] == [["ok", name] for name in CHECKS]
    assert lines[-1].startswith(f"{len(CHECKS)} of {len(CHECKS)} checks passed in ")


def test_a_method_in_a_file(unisono: Command) -> None:
    result = unisono("check", SOUND, "--only", "network_roles", "--only", "loss", "--set", "method.scale=3.0")
    assert result.code == 0
    assert "2 of 2 checks passed" in result.out


def test_a_failed_check_says_what_is_wrong_and_ends_with_1(unisono: Command, tmp_path: Path) -> None:
    code = SOUND.read_text().replace('shared_networks = ("encoder", "projector")', 'shared_networks = ("encoder",)')
    (tmp_path / "forgetful.py").write_text(code.replace('@register("align-uniform")', '@register("forgetful")'))
    result = unisono("check", "forgetful.py", "--only", "network_roles", "--only", "summary")
    assert result.code == 1
    line = result.out.splitlines()[0]
    assert line.startswith("FAILED network_roles ")
    assert "forgetful: the network 'projector' of build_networks has no role" in line
    assert "1 of 2 checks passed" in result.out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def f(:\n", "line 1: invalid syntax"),
        ("x = 1\ny = unknown\n", "line 2: NameError: name 'unknown' is not defined"),
        ("import nowhere_at_all\n", "No module named 'nowhere_at_all'"),
        ("x = 1\n", "registers 0 methods"),
        ("from unisono.methods.simclr import SimCLR\nclass A(SimCLR):\n    def __init__(self): ...\n", "write setup(self)"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_sentence(unisono: Command, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    assert problem in unisono("check", "mine.py").sentence


def test_other_bad_input_is_one_sentence(unisono: Command) -> None:
    assert "there is no file" in unisono("check", "missing.py").sentence
    assert "There is no method 'simclrr'. Did you mean 'simclr'?" in unisono("check", "simclrr").sentence
    assert "There is no check 'los'" in unisono("check", "simclr", "--only", "los").sentence
