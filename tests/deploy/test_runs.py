"""Following a run on its server."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from unisono.config import resolve
from unisono.core.errors import UserError
from unisono.deploy.directories import ServerDirectory, is_wanted
from unisono.deploy.init import create_federation
from unisono.deploy.runs import follow
from unisono.deploy.wanted import RunKeeper, unwanted_if_refused, want
from unisono.recipes import build_tree
from unisono.runs.directory import RunDirectory


def test_how_an_earlier_attempt_ended_does_not_end_the_one_that_goes_on_with_it(tmp_path: Path) -> None:
    create_federation(tmp_path / "federation", 1, insecure=True)
    server = ServerDirectory.open(tmp_path / "federation" / "server")
    directory = RunDirectory.create(tmp_path / "run", resolve(build_tree("digits-smoke", None, ())).as_tree())
    directory.write_json("status.json", {"status": "failed", "round": 1, "run_id": 1, "reason": "interrupted"})
    rounds: list[dict[str, Any]] = []

    def go_on() -> None:
        time.sleep(0.2)
        directory.logs["metrics"].append({"round": 0, "loss": 1.0})
        directory.write_json("status.json", {"status": "finished", "round": 1, "run_id": 2})

    other = threading.Thread(target=go_on)
    other.start()
    status = follow(server, directory.path, 2, rounds.append, poll=0.01)
    other.join()
    assert status == {"status": "finished", "round": 1, "run_id": 2}
    assert [entry["round"] for entry in rounds] == [0]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[ServerDirectory, RunDirectory, list[Path], list[str]]:
    """A server with one wanted run, what was launched, and what was told."""
    create_federation(tmp_path / "federation", 1, insecure=True)
    server = ServerDirectory.open(tmp_path / "federation" / "server")
    directory = RunDirectory.create(server.runs / "run", resolve(build_tree("digits-smoke", None, ())).as_tree())
    directory.write_json("flower.json", {"run_id": 1})
    want(directory.path)
    return server, directory, [], []


Kept = tuple[ServerDirectory, RunDirectory, list[Path], list[str]]


def keeper(kept: Kept, pause: float = 0.0, start: float = 0.0) -> RunKeeper:
    server, _, launched, told = kept
    return RunKeeper(server, launched.append, told.append, pause, start)


def test_an_interrupted_run_goes_on_and_one_that_somebody_works_on_is_left_alone(kept: Kept) -> None:
    server, directory, launched, _ = kept
    directory.write_json("status.json", {"status": "starting", "round": 0, "run_id": 1})
    keeper(kept, start=60).look()
    assert launched == []  # its app has only just been started
    directory.write_json("status.json", {"status": "running", "round": 0, "run_id": 1})
    directory.lock()
    keeper(kept).look()
    assert launched == []
    directory.unlock()
    (server.path / "paused").touch()
    keeper(kept).look()
    assert launched == []
    (server.path / "paused").unlink()
    keeper(kept).look()
    assert launched == [directory.path]
    directory.write_json("status.json", {"status": "finished", "round": 1, "run_id": 1})
    keeper(kept).look()
    assert len(launched) == 1
    assert not is_wanted(directory.path)


def test_a_run_whose_files_are_damaged_does_not_keep_the_others_from_going_on(kept: Kept) -> None:
    server, directory, launched, told = kept
    (directory.path / "status.json").write_text("[]")
    other = RunDirectory.create(server.runs / "some-other", directory.config_tree)
    other.write_json("flower.json", {"run_id": 2})
    other.write_json("status.json", {"status": "failed", "round": 0, "run_id": 2})
    want(other.path)
    keeper(kept).look()
    assert launched == [other.path]
    assert any(sentence.startswith("run run cannot be continued now") for sentence in told)


def test_a_run_that_gets_no_further_is_given_up_after_five_tries(kept: Kept) -> None:
    _, directory, launched, told = kept
    directory.write_json("status.json", {"status": "failed", "round": 0, "run_id": 1, "reason": "ConnectError"})
    patient = keeper(kept, pause=60)
    patient.look()
    patient.look()
    assert len(launched) == 1  # the second try waits
    one = keeper(kept)
    for _ in range(3):
        one.look()
    directory.logs["metrics"].append({"round": 0, "loss": 1.0})  # a round is done: the count begins anew
    for _ in range(9):
        one.look()
    assert len(launched) == 1 + 3 + 5
    assert not is_wanted(directory.path)
    assert "given up" in told[-1]


def test_a_run_that_is_refused_before_its_first_round_is_not_tried_again(kept: Kept) -> None:
    _, directory, _, _ = kept
    with pytest.raises(OSError, match="gone"), unwanted_if_refused(directory):
        raise OSError("gone")
    assert is_wanted(directory.path)
    with pytest.raises(UserError), unwanted_if_refused(directory):
        raise UserError("no such option")
    assert not is_wanted(directory.path)
