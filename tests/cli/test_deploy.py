"""The command line of a federation: what it makes, what it says, and how it refuses. Whole runs are in tests/deploy."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from tests.cli.conftest import Command
from unisono.cli.deploy import app
from unisono.deploy.directories import ServerDirectory
from unisono.deploy.runs import prepare_run
from unisono.runs.directory import RunDirectory

COMMANDS = {command.name: command.callback for command in app.registered_commands}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_narrow_terminal_and_shows_an_example(unisono: Command, name: str) -> None:
    result = unisono("deploy", name, "--help")
    assert result.code == 0
    assert max(map(len, result.out.splitlines())) <= 80
    callback = COMMANDS[name]
    example = re.search(r"Example: unisono (deploy .+)", (callback and callback.__doc__) or "")
    assert example, name
    assert shlex.split(example.group(1))[1] == name


def test_init_makes_a_federation_and_warns_where_it_is_insecure(unisono: Command, tmp_path: Path) -> None:
    result = unisono("deploy", "init", "federation", "--clients", 2, "--host", "fed.example.org", "--port", 9999)
    assert (result.code, result.err) == (0, "")
    assert ServerDirectory.open(tmp_path / "federation").config.port == 9999
    assert "warning" not in result.out
    assert "anyone who reaches the server may join" in unisono("deploy", "init", "open", "--clients", 1, "--insecure").out
    assert "exists already" in unisono("deploy", "init", "federation", "--clients", 2).sentence


def test_without_a_federation_every_command_says_so(unisono: Command) -> None:
    for arguments in (["server"], ["client"], ["status"], ["run", "simclr"], ["fetch", "x"]):
        assert "unisono deploy init" in unisono("deploy", *arguments).sentence
    assert "Nothing runs in" in unisono("deploy", "stop").sentence


def test_a_server_that_is_not_there_is_named(unisono: Command) -> None:
    unisono("deploy", "init", "f", "--clients", 3, "--port", 1)
    assert "server: not running" in unisono("deploy", "status", "f").out
    assert "127.0.0.1:1 does not answer" in unisono("deploy", "run", "simclr", "--server", "f", "--name", "a").sentence
    assert not Path("f/server/runs/a").exists()


def test_a_run_is_checked_before_anything_starts(unisono: Command) -> None:
    unisono("deploy", "init", "f", "--clients", 3)
    assert "one of the two" in unisono("deploy", "run", "--server", "f").sentence
    assert "There is no recipe or method 'simclrr'" in unisono("deploy", "run", "simclrr", "--server", "f").sentence
    assert (
        "cohort.size must be at most" in unisono("deploy", "run", "simclr", "--server", "f", "--set", "cohort.size=9").sentence
    )
    assert "There is no run 'b'" in unisono("deploy", "run", "--resume", "b", "--server", "f").sentence


def test_a_client_needs_samples_that_can_be_read(unisono: Command, tmp_path: Path) -> None:
    unisono("deploy", "init", "f", "--clients", 1)
    assert "--data FOLDER" in unisono("deploy", "client", "f/client-0").sentence
    np.savez(tmp_path / "bad.npz", wrong=np.zeros(3))
    assert "must hold one array named x" in unisono("deploy", "client", "f/client-0", "--data", "bad.npz").sentence


def test_a_prepared_run_is_tolerant_unless_the_recipe_says_otherwise(tmp_path: Path) -> None:
    path = prepare_run(tmp_path / "runs", 3, "simclr", (), "a")
    tree = RunDirectory.open(path).config_tree
    assert (tree["federation"]["strict"], tree["engine"]["client_timeout"], tree["partition"]["num_clients"]) == (
        False,
        600.0,
        3,
    )
    strict = prepare_run(tmp_path / "runs", 3, "simclr", ("federation.strict=true", "engine.client_timeout=5.0"), "b")
    tree = RunDirectory.open(strict).config_tree
    assert (tree["federation"]["strict"], tree["engine"]["client_timeout"]) == (True, 5.0)
    assert tree["aggregation"]["max_weight_share"] == 0.5, "no client takes over a mean by what it says of its size"
    masked = prepare_run(tmp_path / "runs", 3, "simclr", ("privacy.secure_aggregation=true",), "c")
    assert "max_weight_share" not in RunDirectory.open(masked).config_tree["aggregation"], "a masked sum shows no weights"
    uids = {(tmp_path / "runs" / name / "federation.json").read_text() for name in ("a", "b")}
    assert len(uids) == 2


def test_a_client_is_removed_though_the_server_does_not_run(unisono: Command, tmp_path: Path) -> None:
    unisono("deploy", "init", "federation", "--clients", 2)
    result = unisono("deploy", "remove", 1, "--server", "federation")
    assert result.out.strip() == "client 1 is turned away when the server starts"
    assert sorted(ServerDirectory.open(tmp_path / "federation").keys) == [0]
    assert "There is no key of client 9. Known: 0." in unisono("deploy", "remove", 9, "--server", "federation").sentence
    unisono("deploy", "init", "open", "--clients", 1, "--insecure")
    assert "insecure = true" in unisono("deploy", "remove", 0, "--server", "open").sentence


def test_the_exit_code_of_check_says_how_bad_it_is(unisono: Command) -> None:
    unisono("deploy", "init", "f", "--clients", 2, "--port", 1)
    result = unisono("deploy", "check", "f/client-1", "--json")
    assert result.code == 2
    assert {json.loads(line)["level"] for line in result.out.splitlines()} == {"ok", "error"}


def test_a_paused_client_says_so_and_goes_on(unisono: Command, tmp_path: Path) -> None:
    unisono("deploy", "init", "f", "--clients", 1)
    made = tmp_path / "f"
    assert "answers nothing until" in unisono("deploy", "pause", made / "client-0").out
    assert (made / "client-0" / "paused").exists()
    assert "goes on" in unisono("deploy", "pause", made / "client-0", "--off").out
    assert not (made / "client-0" / "paused").exists()
    assert "paused runs: none" in unisono("deploy", "pause", made).out
    assert (made / "server" / "paused").exists()
