"""Help, version, and every example that the help texts give."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from PIL import Image

from tests.cli.conftest import SMALL, Command
from unisono import __version__
from unisono.cli.deploy import app as deploy
from unisono.cli.main import app

EXAMPLE = re.compile(r"Example: unisono (.+)")
COMMANDS = {"": app.registered_callback and app.registered_callback.callback} | {
    command.name: command.callback for command in app.registered_commands
}


def example_of(name: str | None) -> list[str]:
    callback = COMMANDS[name]
    match = EXAMPLE.search((callback and callback.__doc__) or "")
    assert match, f"unisono {name} --help has no example"
    return shlex.split(match.group(1))


def test_version(unisono: Command) -> None:
    assert unisono("--version").out == f"unisono {__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from unisono.cli.main import main\n"
        "try: main(['--help'])\n"
        "finally: print(sorted({'torch', 'sklearn', 'pydantic', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "Real federation:" in done.stdout


@pytest.mark.parametrize("name", [name for name in COMMANDS if name])
def test_help_fits_a_narrow_terminal_and_shows_the_example(unisono: Command, name: str) -> None:
    result = unisono(name, "--help")
    assert result.code == 0
    assert max(map(len, result.out.splitlines())) <= 80
    assert f"Example: unisono {shlex.join(example_of(name))}" in result.out
    assert "\\[" not in result.out


@pytest.mark.parametrize("name", [command.name or "" for command in deploy.registered_commands])
def test_help_of_deploy_fits_too(unisono: Command, name: str) -> None:
    result = unisono("deploy", name, "--help")
    assert result.code == 0
    assert max(map(len, result.out.splitlines())) <= 80
    assert f"Example: unisono deploy {name}" in result.out
    assert "\\[" not in result.out


@pytest.mark.parametrize("path", [[], ["deploy"]])
def test_commands_are_grouped_by_task_and_not_cut(unisono: Command, path: list[str]) -> None:
    group: Any = typer.main.get_command(app)
    for name in path:
        group = group.commands[name]
    out = unisono(*path, "--help").out
    assert max(map(len, out.splitlines())) <= 80
    assert "..." not in out.partition("Options:")[2]
    heads = re.findall(r"^([A-Z][a-z ]+):$", out, re.M)
    assert "Commands" not in heads, "a command without a group"
    assert len(heads) > 4
    assert set(re.findall(r"^  ([a-z]+) +[A-Z]", out, re.M)) == set(group.commands)


def test_examples(unisono: Command, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "samples.npz", x=generator.integers(0, 256, (5, 8, 8), dtype=np.uint8))
    for number in range(40):
        file = tmp_path / "sites" / f"site-{number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (16, 16), dtype=np.uint8)).save(file)
    assert unisono("run", *SMALL, "--set", "method.name=orchestra", "--name", "clusters", "--quiet").code == 0
    # The example of `run` makes the other run that examples look at.
    for name in sorted(COMMANDS, key=lambda name: name != "run"):
        result = unisono(*example_of(name))
        assert result.code == 0, (name, result)
        assert result.err == "", name
    for file in ("split.png", "features.npz", "encoder.onnx", "encoder.md", "clusters.csv", "runs/demo/status.json"):
        assert (tmp_path / file).is_file(), file


def test_no_such_option_is_a_usage_error(unisono: Command) -> None:
    result = unisono("run", "simclr", "--nonsense")
    assert result.code == 2
    assert "No such option" in result.err
    assert "Traceback" not in result.err
