from __future__ import annotations

from pathlib import Path

from unisono.core.payload import Payload
from unisono.federation.rounds import RoundRecord, State
from unisono.runs.directory import RunDirectory
from unisono.runs.observers import Logs


def test_notes_are_logged_beside_the_metrics(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    logs = Logs(directory)
    logs.on_round_end(State(1, Payload()), RoundRecord(0, metrics={"loss": 1.0}))
    logs.on_round_end(State(2, Payload()), RoundRecord(1, metrics={"loss": 2.0}, notes=["first", "second"]))
    assert directory.logs["notes"].read() == [{"round": 1, "note": "first"}, {"round": 1, "note": "second"}]
    assert [set(entry) & {"loss", "notes"} for entry in directory.logs["metrics"].read()] == [{"loss"}, {"loss"}]
