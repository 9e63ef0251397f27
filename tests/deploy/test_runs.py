"""Following a run on its server."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from unisono.config import resolve
from unisono.deploy.directories import ServerDirectory
from unisono.deploy.init import create_federation
from unisono.deploy.runs import follow
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
