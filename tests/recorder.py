"""An callback that keeps what it is told."""

from __future__ import annotations

from unisono.federation.loop import Callback, RoundRecord, ServerState


class Recorder(Callback):
    """Keeps every record."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.records.append(record)
