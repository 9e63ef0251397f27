"""Releases of a real federation are counted before they are made, and never forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.attacks import attack
from unisono.core.payload import Payload
from unisono.federation.loop import ServerState
from unisono.privacy.accountant import UserLevelAccountant
from unisono.runs.releases import ReleaseLog


def session(path: Path, start: int, phases: list[tuple[int, bool]]) -> int:
    """One process of a run, from a checkpoint on; returns what was lost before it."""
    log = ReleaseLog(path)
    log.on_run_start(ServerState(start, Payload()))
    for round, noisy in phases:
        log.begin(round, "train", 3, noisy)
    return log.lost


@attack("A27", "Kills the server after noisy rounds that no checkpoint has, so that they do not count", "they stay counted")
def test_rounds_that_a_checkpoint_forgets_stay_counted(tmp_path: Path) -> None:
    assert session(tmp_path, 0, [(0, True), (1, True), (2, False), (2, True)]) == 0
    assert session(tmp_path, 1, [(1, True), (2, True), (3, True)]) == 2, "rounds 1 and 2 are done once more"
    with (tmp_path / "releases.jsonl").open("a") as file:
        file.write('{"round": 4, "pha')  # killed while it wrote: nobody was asked yet
    assert session(tmp_path, 3, []) == 3
    assert session(tmp_path, 3, []) == 3
    lines = [line for line in (tmp_path / "releases.jsonl").read_text().splitlines() if line.endswith("}")]
    assert sum("phase" in json.loads(line) for line in lines) == 7


def test_a_run_that_goes_back_further_than_before_loses_more(tmp_path: Path) -> None:
    """The last checkpoint may be damaged: then rounds of the process before are done once more too."""
    assert session(tmp_path, 0, [(0, True), (1, True), (2, True)]) == 0
    assert session(tmp_path, 3, [(3, True)]) == 0
    assert session(tmp_path, 2, [(2, True)]) == 2, "rounds 2 and 3"
    assert session(tmp_path, 3, []) == 2


@pytest.mark.parametrize(
    ("good", "bad"), [('"noisy": true', '"noisz": true'), ('"round": 1', '"rpund": 1'), ("true", "tsue"), ("train", "tr\x80in")]
)
def test_a_damaged_line_counts(tmp_path: Path, good: str, bad: str) -> None:
    assert session(tmp_path, 0, [(0, True), (1, True), (2, True)]) == 0
    path = tmp_path / "releases.jsonl"
    head, line, tail = path.read_text().partition('{"round": 1')
    first, rest = tail.split("\n", 1)
    path.write_bytes(f"{head}{(line + first).replace(good, bad)}\n{rest}".encode("latin-1"))
    assert session(tmp_path, 3, []) == 1, "round 1 may have been a noisy one"


def test_lost_rounds_cost_as_much_as_others() -> None:
    pytest.importorskip("dp_accounting")
    plain = UserLevelAccountant(2.0, 1e-5, "none", 10, 10)
    resumed = UserLevelAccountant(2.0, 1e-5, "none", 10, 10)
    resumed.more_rounds = lambda: 3
    assert resumed.epsilon(5) == plain.epsilon(8) > plain.epsilon(5)
    assert resumed.statement(5).startswith("Over 8 rounds")
