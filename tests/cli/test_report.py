from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import typer

from tests.cli.conftest import SMALL, Command
from unisono.runs.directory import RunDirectory


def test_a_page_is_made_anew(unisono: Command, demo: Path) -> None:
    (demo / "report.html").unlink()
    result = unisono("report", demo)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Report in runs/demo/report.html (0.")
    assert (demo / "report.html").is_file()
    assert unisono("report", demo, "--quiet").out == "runs/demo/report.html\n"


def test_a_run_that_left_nothing_for_its_page_is_caught_up_with(unisono: Command, demo: Path) -> None:
    shutil.rmtree(demo / "report")
    assert unisono("report", demo).code == 0
    assert sorted(path.name for path in (demo / "report").glob("round-*")) == [f"round-{n:06d}.npz" for n in (0, 1, 2)]


def test_a_run_whose_data_is_gone_still_has_a_page(unisono: Command, demo: Path) -> None:
    shutil.rmtree(demo / "report")
    tree = RunDirectory(demo).config_tree
    RunDirectory(demo).save_config({**tree, "data": {**tree["data"], "dataset": "folder", "path": "nowhere"}})
    result = unisono("report", demo)
    assert result.code == 0
    assert result.err.startswith("note: The report has no map of the last state: ")
    assert "nowhere" in result.err
    assert '"id":"curves"' in (demo / "report.html").read_text()


def test_damaged_checkpoints_cost_the_map_alone(unisono: Command, demo: Path) -> None:
    shutil.rmtree(demo / "report")
    for file in demo.glob("checkpoints/*/server.safetensors"):
        file.write_bytes(b"")
    result = unisono("report", demo)
    assert result.code == 0
    assert "is damaged" in result.err


def test_open_shows_the_file(unisono: Command, demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)
    assert unisono("report", demo, "--open").code == 0
    assert opened == [(demo / "report.html").resolve().as_uri()]


def test_no_run(unisono: Command) -> None:
    assert unisono("report", "nothing").sentence == "There is no run directory nothing."


def test_options_are_checked(unisono: Command) -> None:
    assert (
        "report.points must be less than or equal to 2000, got 5000"
        in unisono("run", *SMALL, "--set", "report.points=5000").sentence
    )


def test_the_demo_ends_with_the_reports(unisono: Command, tmp_path: Path) -> None:
    result = unisono("demo", "--set", "federation.rounds=1", "--set", "data.limit=200", "--set", "model.backbone=cfcl-cnn")
    assert result.code == 0
    for start, name in (("simclr", "report"), ("orchestra", "report"), ("", "gallery")):
        (line,) = [line for line in result.out.splitlines()[-3:] if f" {start}: " in line or (not start and name in line)]
        page = tmp_path / line.rpartition(": ")[2]
        assert page.name == f"{name}.html"
        assert page.is_file()
    assert result.out.count("Its clusters are ") == 2


def test_the_gallery_has_the_number_of_clusters_that_was_asked_for(unisono: Command, demo: Path) -> None:
    assert unisono("report", demo, "--clusters", "4").code == 0
    assert "at least 1 cluster, got 0" in unisono("report", demo, "--clusters", "0").sentence
    assert "4 of k-means" in (demo / "gallery.html").read_text(encoding="utf-8")
    assert "gallery.html" in (demo / "report.html").read_text(encoding="utf-8")
