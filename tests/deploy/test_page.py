"""The page of a run on a federation, without the federation."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from tests.report.test_run_page import page_of
from unisono.config import Config, resolve
from unisono.core.context import Context
from unisono.core.method import RunInfo
from unisono.deploy import page
from unisono.deploy.runs import prepare_run
from unisono.report.files import ReportFiles
from unisono.reporting import make_report
from unisono.runs.directory import RunDirectory

SMALL = ("model.width=0.125", "federation.rounds=4", "method.hidden_dim=32", "method.projection_dim=16")


def described(tmp_path: Path, *settings: str) -> tuple[RunDirectory, Config]:
    """A run of a round, as the server keeps it; locked, as it is until its end."""
    directory = RunDirectory(prepare_run(tmp_path, 3, "fedema", [*SMALL, *settings], "x"))
    directory.lock()
    config = resolve(directory.config_tree)
    info = RunInfo((1, 8, 8), (0.5,), (0.2,), None, 3, config.federation.rounds, config.method_sections)
    method = config.method_class(config.method, info)
    page.describe(directory, config, method, method.init_server(Context(0)))
    directory.logs["metrics"].append(
        {"round": 0, "asked": 3, "answered": 2, "bytes_down": 9, "bytes_up": 9, "loss": 1.0, "probe.align": 0.5}
    )
    directory.logs["notes"].append({"round": None, "note": "client 2 is left out"})
    return directory, config


def facts(document: dict[str, Any]) -> dict[str, str]:
    (pairs,) = [block["pairs"] for block in document["sections"][0]["blocks"] if block["kind"] == "facts"]
    return dict(pairs)


def test_what_the_server_knows(tmp_path: Path) -> None:
    directory, config = described(tmp_path)
    page.write_finished_page(directory, config, 4)
    found = page_of(directory.path)
    assert found["status"] == "finished"
    assert found["subtitle"].startswith("fedema on a federation of 3 clients. FedEMA: BYOL on clients")
    assert [part["id"] for part in found["sections"]] == ["run", "curves", "notes", "privacy", "repeat"]
    assert facts(found)["data"] == "the clients' own, samples of 1 x 8 x 8"
    assert not {"data set", "split", "shift"} & facts(found).keys()
    assert found["sections"][-1]["blocks"][0]["text"].startswith("unisono deploy run ")


def test_a_failed_run_says_why_and_how_to_go_on(tmp_path: Path) -> None:
    directory, config = described(tmp_path)
    page.write_failed_page(directory, config, 1, "no quorum.")
    found = page_of(directory.path)
    expected = "The run failed after 1 of 4 rounds: no quorum. Continue it with 'unisono deploy run --resume x'."
    assert (found["status"], found["sections"][0]["blocks"][0]["text"]) == ("failed", expected)


def test_a_problem_with_the_page_fails_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(page, "write_page", fail)
    monkeypatch.setattr(page, "about_method", fail)
    directory, config = described(tmp_path)
    page.write_finished_page(directory, config, 4)
    assert ReportFiles(directory).problems.count("RuntimeError: no ink") == 2


def test_no_page_where_none_is_wanted(tmp_path: Path) -> None:
    directory, config = described(tmp_path, "report.enabled=false")
    page.write_finished_page(directory, config, 4)
    assert not (directory.path / "report.html").exists()
    assert not (directory.path / "report").exists()


def test_a_page_made_anew_shows_no_data_of_another_place(tmp_path: Path) -> None:
    directory, _ = described(tmp_path, "data.dataset=digits")
    directory.unlock()
    shutil.rmtree(directory.path / "report")
    _, problem = make_report(directory.path)
    assert problem == "The page has no map of the last state: its samples are with the clients of its federation."
    assert ReportFiles(directory).read("about") is None
    assert "data" not in [part["id"] for part in page_of(directory.path)["sections"]]
