from __future__ import annotations

from unisono.federation.screening import too_long
from unisono.report.clients import client_table, failure_table

LOG = [
    {"round": 0, "clients": [
        {"client": 0, "phase": "cluster", "samples": 5, "bytes_down": 1_000_000, "bytes_up": 500_000},
        {"client": 0, "phase": "train", "samples": 5, "bytes_down": 1_000_000, "bytes_up": 500_000, "loss": 3.0, "x_loss": 9.0},
    ]},
    {"round": 2, "clients": [{"client": 0, "phase": "train", "samples": 5, "bytes_down": 0, "bytes_up": 0, "loss": 2.0}]},
]  # fmt: skip
FAILURES = [{"round": 1, "phase": "train", "client": 2, "reason": "too\n tired"}]


def test_a_row_per_client() -> None:
    block = client_table(LOG, FAILURES, {"sizes": [5, 7, 1]}, [])
    assert block is not None
    assert block["rows"] == [
        [0, 5, 2, 3.0, 2.0, 0, 2.0, 1.0],
        [1, 7, 0, None, None, 0, 0.0, 0.0],
        [2, 1, 0, None, None, 1, 0.0, 0.0],
    ]
    assert "3 clients, 2 of them not asked so far" in block["note"]


def test_without_a_split_the_logs_name_the_clients() -> None:
    block = client_table(LOG, FAILURES, None, ["ann", "bob", "cleo"])
    assert block is not None
    assert [row[:2] for row in block["rows"]] == [["ann", 5], ["cleo", None]]
    assert client_table([], [], None, []) is None


def test_failures() -> None:
    block = failure_table(FAILURES)
    assert block is not None
    assert block["rows"] == [[2, "train", 2, "too tired"]]
    assert failure_table([]) is None


def test_screened_updates_are_counted() -> None:
    (reason,) = too_long({0: 1.0, 1: 1.0, 2: 1.0, 3: 9.0}, 10.0).values()
    block = failure_table([*FAILURES, {**FAILURES[0], "reason": reason}])
    assert block is not None
    assert block["note"].strip() == "1 of all were left out for the length of their update."
