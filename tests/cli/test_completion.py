"""Completion in real shells: the tab key is pressed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer import _completion_shared

from unisono.cli.completion import complete_datasets, complete_methods, complete_recipes, complete_studies
from unisono.core.method import methods
from unisono.data.datasets import datasets
from unisono.recipes import list_recipes
from unisono.studies.study import list_studies

PATIENCE = 600
BIN = Path(sys.executable).parent


def test_names_are_those_that_are_registered() -> None:
    built_in = {name for name in methods if methods[name].__module__.startswith("unisono.")}
    assert set(complete_methods("")) == built_in
    assert set(complete_datasets("")) == {name for name in datasets if datasets[name].__module__.startswith("unisono.")}
    assert set(complete_recipes("")) == built_in | set(list_recipes())
    assert set(complete_studies("")) == set(list_studies())
    assert complete_methods("sim") == ["simclr", "simsiam"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key_completes_what_was_installed(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = os.pathsep.join((str(BIN), os.environ["PATH"]))
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": path, "TERM": "dumb", "ZDOTDIR": str(tmp_path)}
    install = [shell, "-c", "unisono --install-completion; true"]  # `true` keeps the shell as the parent, which is looked at
    subprocess.run(install, env=environment, cwd=tmp_path, check=True, capture_output=True)
    with Terminal([shell, "-i"], environment, tmp_path) as terminal:
        terminal.type("PS1='read''y> '; bind 'set bell-style none' 2>/dev/null; unsetopt promptcr 2>/dev/null\n")
        terminal.wait_for("ready> ")
        terminal.type("unisono ")
        for typed, completed in (("lis\t", "list "), ("meth\t", "methods "), ("--js\t", "--json ")):
            terminal.type(typed)
            terminal.wait_for(completed.removeprefix(typed.split()[-1]))
        terminal.type("\n")
        terminal.wait_for('"simclr"')
        terminal.type("unisono run --dataset digi\t")
        terminal.wait_for("ts ")


def test_the_script_for_zsh_completes_at_the_first_press() -> None:
    """Also where there is no zsh to press the key in."""
    script = _completion_shared.get_completion_script(prog_name="unisono", complete_var="_UNISONO_COMPLETE", shell="zsh")
    assert script.splitlines()[-1] == """[[ $zsh_eval_context[-1] == loadautofunc ]] && _unisono_completion "$@\""""
    assert script.count("loadautofunc") == 1


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self._master, slave = pty.openpty()
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        self._process = subprocess.Popen(command, **streams, env=environment, cwd=folder, start_new_session=True)  # type: ignore[call-overload]
        os.close(slave)
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())
        self.shown = ""

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + PATIENCE
        while text not in self.shown:
            assert time.monotonic() < end, f"{text!r} did not appear in {self.shown!r}"
            if select.select([self._master], [], [], 1)[0]:
                self.shown += os.read(self._master, 4096).decode(errors="replace")
