from __future__ import annotations

from pathlib import Path

from unisono.core.payload import Payload
from unisono.federation.loop import RoundRecord, ServerState
from unisono.runs.callbacks import Logs
from unisono.runs.directory import RunDirectory


def test_notes_are_logged_beside_the_metrics(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    logs = Logs(directory)
    logs.on_round_end(ServerState(1, Payload()), RoundRecord(0, metrics={"loss": 1.0}))
    logs.on_round_end(ServerState(2, Payload()), RoundRecord(1, metrics={"loss": 2.0}, notes=["first", "second"]))
    assert directory.logs["notes"].read() == [{"round": 1, "note": "first"}, {"round": 1, "note": "second"}]
    assert [set(entry) & {"loss", "notes"} for entry in directory.logs["metrics"].read()] == [{"loss"}, {"loss"}]
