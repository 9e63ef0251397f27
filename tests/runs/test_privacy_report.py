from __future__ import annotations

from pathlib import Path

import pytest

from unisono.core.method import Guarantee
from unisono.core.payload import Payload, Reduce, Reveals, Share
from unisono.federation.client_turn import ClientStats
from unisono.federation.loop import RoundRecord, ServerState
from unisono.privacy.guarantee import KAnonymity
from unisono.privacy.local_dp import LocalDp
from unisono.runs.directory import RunDirectory
from unisono.runs.privacy_report import PrivacyReport

SHARES = {"encoder": Share(Reduce.MEAN), "local_centroids": Share(Reduce.STACK, Reveals.STATISTICS)}


def play(
    directory: RunDirectory, guarantee: Guarantee | None, rounds: dict[int, list[list[int]]], size: int = 9
) -> RoundRecord:
    """Rounds by number: for every attempt, the clients that answered."""
    report = PrivacyReport(directory, SHARES, guarantee, None, ["mind the noise"])
    report.on_run_start(ServerState(min(rounds), Payload()))
    for number, attempts in rounds.items():
        for clients in attempts:
            report.on_round_start(number, len(clients))
            for client in clients:
                report.on_client_end("train", ClientStats(client, 20, 0, 0, 0.0, {"smallest_cluster": float(size + client)}))
        record = RoundRecord(number)
        report.on_round_end(ServerState(number + 1, Payload()), record)
    return record


def test_releases_are_counted_by_client_and_survive_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    budget = LocalDp(1.0, 1e-3, 4)
    whole, halves = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "halves")
    for directory in (whole, halves):
        directory.path.mkdir()
    rounds = {0: [[0, 1]], 1: [[1, 2]], 2: [[1]]}
    record = play(whole, budget, rounds)
    play(halves, budget, {number: rounds[number] for number in (0, 1)})
    play(halves, budget, {2: rounds[2]})
    assert whole.read_json("privacy.json") == halves.read_json("privacy.json")
    assert whole.logs["privacy"].read() == halves.logs["privacy"].read()
    by_client = whole.read_json("privacy.json")["centroids"]["epsilon_by_client"]
    assert by_client == {"0": budget.spent(1), "1": budget.spent(3), "2": budget.spent(1)}
    assert record.metrics["centroid_epsilon"] == budget.spent(3)
    assert "for a client of 3 releases" in record.notes[0]


def test_an_attempt_that_is_tried_again_has_released_too(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    directory = RunDirectory(tmp_path)
    play(directory, LocalDp(1.0, 1e-3, 4), {0: [[0], [0, 1]]})
    assert directory.logs["privacy"].read()[0]["released"] == [0, 0, 1]
    assert directory.logs["privacy"].read()[0]["most_releases"] == 2


def test_k_is_the_smallest_cluster_of_the_whole_run(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    play(directory, KAnonymity(2), {0: [[3, 5]]})
    play(directory, KAnonymity(2), {1: [[4]]})
    report = directory.read_json("privacy.json")
    assert report["centroids"]["k"] == 12
    assert [line["k"] for line in directory.logs["privacy"].read()] == [12, 12]
    assert report["leaves_a_client"]["local_centroids"] == {"reveals": "statistics", "reduced_by": "stack"}
    assert report["warnings"] == ["mind the noise"]


def test_a_method_without_statistics_reports_what_leaves_a_client(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    record = play(directory, None, {0: [[0]]})
    report = directory.read_json("privacy.json")
    assert "centroids" not in report
    assert report["model_updates"] == "Model updates are not differentially private."
    assert directory.logs["privacy"].read() == []
    assert record.notes == []
