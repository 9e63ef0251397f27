"""An observer that keeps what it is told."""

from __future__ import annotations

from unisono.federation.rounds import Observer, RoundRecord, State


class Recorder(Observer):
    """Keeps every record."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def on_round_end(self, state: State, record: RoundRecord) -> None:
        self.records.append(record)
