from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.conftest import Command
from unisono import load


def test_finished_run(unisono: Command, demo: Path) -> None:
    text = unisono("show", demo).out
    metrics = load(demo).metrics
    assert text.startswith("runs/demo: finished, 2 of 2 rounds done\n")
    assert max(map(len, text.splitlines())) <= 80
    down = sum(entry["bytes_down"] for entry in metrics)
    assert f"{down / 1e6:,.1f} MB down" in text
    rows = [line.split() for line in text.splitlines()]
    for entry in metrics:
        assert [str(entry["round"] + 1), "4/4", f"{entry['loss']:.4f}"] in rows
    assert ["linear", *(f"{entry['probe.linear']:.4f}" for entry in metrics)] in rows
    assert ["failures", "none"] in rows
    for file in demo.iterdir():
        assert file.name.startswith(".") or file.name in text


def test_interrupted_run(unisono: Command, demo: Path) -> None:
    shutil.rmtree(demo / "checkpoints" / "round-000002")
    text = unisono("show", demo).out
    assert text.startswith("runs/demo: interrupted, 2 of 2 rounds done\n")
    assert "Continue it with 'unisono resume runs/demo'. It goes on after round 1, the last one saved." in text
    shutil.rmtree(demo / "checkpoints")
    (demo / "metrics.jsonl").unlink()
    text = unisono("show", demo).out
    assert "The run was stopped after 0 of 2 rounds. Continue it with 'unisono resume runs/demo'.\n" in text


def test_run_on_a_federation_names_no_data_of_the_recipe(unisono: Command, demo: Path) -> None:
    assert "data set" in unisono("show", demo).out
    (demo / "federation.json").write_text('{"run": "0"}')
    rows = [line.split() for line in unisono("show", demo).out.splitlines()]
    assert any(row[:4] == ["data", "the", "clients'", "own,"] for row in rows)
    assert not any(row[:2] == ["data", "set"] for row in rows)


def test_notes(unisono: Command, demo: Path) -> None:
    assert "note:" not in unisono("show", demo).out
    (demo / "notes.jsonl").write_text('{"round": 1, "note": "the clusters are collapsing"}\n')
    assert "note: round 2: the clusters are collapsing" in unisono("show", demo).out
    (demo / "notes.jsonl").write_text('{"round": null, "note": "client 2 is left out"}\n')
    assert "note: client 2 is left out" in unisono("show", demo).out
