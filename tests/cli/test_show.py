from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.conftest import Command
from unisono import load


def test_finished_run(unisono: Command, demo: Path) -> None:
    text = unisono("show", demo).out
    metrics = load(demo).metrics
    assert text.startswith("runs/demo: finished after 2 rounds\n")
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
    assert "interrupted after round 1 of 2; continue with 'unisono resume runs/demo'" in unisono("show", demo).out
    shutil.rmtree(demo / "checkpoints")
    (demo / "metrics.jsonl").unlink()
    assert "interrupted before the first round was saved, out of 2" in unisono("show", demo).out


def test_notes(unisono: Command, demo: Path) -> None:
    assert "note:" not in unisono("show", demo).out
    (demo / "notes.jsonl").write_text('{"round": 1, "note": "the clusters are collapsing"}\n')
    assert "note: round 2: the clusters are collapsing" in unisono("show", demo).out
    (demo / "notes.jsonl").write_text('{"round": null, "note": "client 2 is left out"}\n')
    assert "note: client 2 is left out" in unisono("show", demo).out
