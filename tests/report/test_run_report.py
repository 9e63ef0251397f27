"""The page of runs of every kind, as data and as a browser shows it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Browser
from tests.report.conftest import small_run
from tests.report.test_html import outline
from unisono import load
from unisono.config import resolve
from unisono.core.config import read_toml
from unisono.data.shift import bin_counts
from unisono.experiment import Experiment
from unisono.report.run_report import in_words, run_document, write_report
from unisono.runs.directory import RunDirectory

SECTIONS = ["learnt", "run", "data", "curves", "map", "clients", "privacy", "timings", "environment", "repeat"]
CLICKS = """
<script>
addEventListener("load", () => {
  for (let pass = 0; pass < 2; pass += 1) {
    document.querySelectorAll("main button, summary").forEach((button) => button.click());
    document.querySelectorAll("input[type=range]").forEach((input) => {
      input.value = pass;
      input.dispatchEvent(new Event("input"));
    });
    document.querySelectorAll("svg, svg rect, canvas").forEach((node) => {
      const { left, top, width, height } = node.getBoundingClientRect();
      const at = { clientX: left + width / 2, clientY: top + height / 2, bubbles: true };
      const kinds = ["pointermove", "pointerdown", "click", "pointerleave"];
      kinds.forEach((kind) => node.dispatchEvent(new PointerEvent(kind, at)));
    });
  }
  document.body.dataset.clicked = "yes";
});
</script></body>"""


def page_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(outline((path / "report.html").read_text(encoding="utf-8")).scripts["document"])
    return found


def block(page: dict[str, Any], section: str, title: str) -> dict[str, Any]:
    (part,) = [part for part in page["sections"] if part["id"] == section]
    (found,) = [one for one in part["blocks"] if one["title"] == title]
    return dict(found)


def test_the_page_holds_what_the_run_logged(clustered: Path) -> None:
    page, metrics = page_of(clustered), load(clustered).metrics
    assert [part["id"] for part in page["sections"]] == SECTIONS
    assert re.match(r"The (encoder|clusters) (beats?|ends?) ", page["sections"][0]["blocks"][0]["text"])
    assert (page["status"], page["title"]) == ("finished", "x")
    losses = [entry.get("loss", entry.get("train.loss")) for entry in metrics]
    loss = block(page, "curves", "Loss")["series"][0]
    assert (loss["x"], loss["y"]) == ([1, 2, 3], pytest.approx(losses, rel=1e-6))
    linear = block(page, "curves", "Probes")["series"][0]
    probed = {entry["round"] + 1: entry["probe.linear"] for entry in metrics if "probe.linear" in entry}
    assert dict(zip(linear["x"], linear["y"], strict=True)) == pytest.approx(probed, rel=1e-6)
    moved = block(page, "curves", "Communication")["series"]
    assert moved[1]["y"][-1] == pytest.approx(sum(entry["bytes_up"] for entry in metrics) / 1e6)
    assert len((clustered / "report.html").read_bytes()) < 3_000_000


def test_the_map_and_the_sheets_show_the_same_points(clustered: Path) -> None:
    page = page_of(clustered)
    drawn, sheet = block(page, "map", "Embeddings"), block(page, "map", "Clusters")
    assert drawn["rounds"] == [0, 1, 2, 3]
    assert [one["name"] for one in drawn["colourings"]] == ["class", "cluster", "client"]
    assert all(len(places) == 120 == page["assets"]["points"]["count"] for places in (*drawn["x"], *drawn["y"]))
    clusters = drawn["colourings"][1]["groups"][-1]
    for row in sheet["rows"]:
        number = int(row["name"].removeprefix("cluster "))
        assert {clusters[member] for member in row["members"]} == {number}
        assert row["detail"].startswith(f"{clusters.count(number)} of 120")


def test_the_command_repeats_the_run_and_the_config_is_all_of_it(clustered: Path, tmp_path: Path) -> None:
    page = page_of(clustered)
    command = block(page, "repeat", "The command that gives bit-identical results")["text"]
    assert command == f"unisono run {clustered / 'config.toml'} --name x-again"
    (tmp_path / "c.toml").write_text(block(page, "repeat", "config.toml: every option, and a recipe itself")["text"])
    assert read_toml(tmp_path / "c.toml") == RunDirectory(clustered).config_tree


def test_series_without_labels(series: Path) -> None:
    page = page_of(series)
    drawn, sheet = block(page, "map", "Embeddings"), block(page, "map", "Nearest neighbours")
    assert [one["name"] for one in drawn["colourings"]] == ["client"]
    assert page["assets"]["points"]["source"].startswith("data:image/png")
    assert all(row["query"] not in row["members"] and "marks" not in row for row in sheet["rows"])
    titles = [chart["title"] for part in page["sections"] if part["id"] == "curves" for chart in part["blocks"]]
    assert "Probes" not in titles
    assert "Scores without labels" in titles


def test_neighbours_are_marked_by_their_class_and_rotations_drawn(tmp_path: Path) -> None:
    path = small_run(tmp_path, "evaluation.probes=[]", "shift.kind=rotation", "shift.num_bins=4")
    page, experiment = page_of(path), Experiment.prepare(resolve(RunDirectory(path).config_tree))
    turns = bin_counts(experiment.config.shift, experiment.partition, experiment.config.run.seed)
    assert block(page, "data", "Rotation of images")["values"] == turns.tolist()
    drawn, sheet = block(page, "map", "Embeddings"), block(page, "map", "Nearest neighbours")
    labels = drawn["colourings"][0]["groups"]
    assert len(sheet["rows"]) == 10
    for row in sheet["rows"]:
        assert row["marks"] == [labels[member] == labels[row["query"]] for member in row["members"]]


def test_a_failed_run_says_why(failed: Path) -> None:
    page = page_of(failed)
    assert page["status"] == "failed"
    assert page["sections"][0]["blocks"][0]["tone"] == "error"
    assert "The run failed after 0 of 3 rounds: Training has diverged: " in page["sections"][0]["blocks"][0]["text"]
    assert "round 1, phase train, client " in page["sections"][0]["blocks"][0]["text"]
    failures = block(page, "failures", "Failures")["rows"]
    assert [row[:2] for row in failures] == [[1, "train"]] * len(failures)
    assert {row[0] for row in block(page, "clients", "Clients")["rows"] if row[5]} == {row[2] for row in failures}


def test_runs_in_every_state_have_a_page(clustered: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(clustered, path)
    directory = RunDirectory(path)
    directory.lock()
    assert run_document(directory)["status"] == "running"
    directory.unlock()
    shutil.rmtree(path / "checkpoints" / "round-000003")
    stopped = run_document(directory)
    assert stopped["status"] == "interrupted"
    assert "Continue it with 'unisono resume" in stopped["sections"][0]["blocks"][0]["text"]
    shutil.rmtree(path / "report")
    (path / "gallery.html").unlink()
    for file in path.glob("*.json*"):
        file.unlink()
    bare = run_document(directory)
    assert [part["id"] for part in bare["sections"]] == ["run", "privacy", "repeat"]
    assert write_report(directory).stat().st_size > 1000


def test_a_note_between_rounds_has_no_round(clustered: Path, tmp_path: Path) -> None:
    shutil.copytree(clustered, tmp_path / "x")
    directory = RunDirectory(tmp_path / "x")
    for number in (None, 1):
        directory.logs["notes"].append({"round": number, "note": "client 2 is left out"})
    assert block(run_document(directory), "notes", "")["rows"] == [[None, "client 2 is left out"], [2, "client 2 is left out"]]


def test_a_long_run_stays_small(clustered: Path, tmp_path: Path) -> None:
    shutil.copytree(clustered, tmp_path / "long")
    directory = RunDirectory(tmp_path / "long")
    for name in ("metrics", "timings", "clients"):
        (last,) = directory.logs[name].read()[-1:]
        for number in range(3, 2000):
            directory.logs[name].append({**last, "round": number})
    assert write_report(directory).stat().st_size < 3_000_000


@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_shows_all_sections_and_survives_every_click(
    browser: Browser, clustered: Path, tmp_path: Path, width: int
) -> None:
    html = (clustered / "report.html").read_text(encoding="utf-8")
    (tmp_path / "report.html").write_text(html.replace("</body>", CLICKS), encoding="utf-8")
    seen = browser((tmp_path / "report.html").as_uri(), width=width)
    assert seen.console == []
    assert 'data-clicked="yes"' in seen.dom
    for section in SECTIONS:
        assert f'<section id="{section}"' in seen.dom
    assert seen.dom.count("<svg") > 8
    assert "<canvas" in seen.dom
    assert "undefined" not in seen.dom.partition("<main")[2].partition("</main>")[0]
    assert "NaN" not in seen.dom.partition("<main")[2].partition("</main>")[0]


@pytest.mark.parametrize("kind", ["series", "failed"])
def test_a_browser_shows_unusual_runs(browser: Browser, kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    seen = browser((path / "report.html").as_uri())
    assert seen.console == []
    assert '<section id="repeat"' in seen.dom


def test_durations() -> None:
    assert [in_words(seconds) for seconds in (0.2, 59.6, 61, 7265)] == ["0 s", "1 min 0 s", "1 min 1 s", "2 h 1 min"]
