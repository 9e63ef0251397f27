"""Progress of reading and embedding, on stderr."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from unisono import run
from unisono.core.progress import listening, tell
from unisono.core.work_progress import WorkProgress, shown_progress
from unisono.evaluation.features import embed
from unisono.evaluation.finetune import FineTuning, finetune
from unisono.report.projection import project


def test_lines_appear_for_slow_work_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with listening(WorkProgress(redrawn=False, slow=0)):
        tell("reading images", 250, 1000)
    assert capsys.readouterr().err.startswith("reading images: 250 of 1,000 (25%), about")
    with listening(WorkProgress(redrawn=False)):
        tell("reading images", 250, 1000)
    with shown_progress(quiet=True):
        tell("reading images", 250, 1000)
    tell("reading images", 250, 1000)
    assert capsys.readouterr().err == ""


def test_time_left_counts_from_where_the_work_went_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe between two rounds, or a resumed run, begins anew: twenty rounds were not made in these four seconds."""
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    shown = WorkProgress(redrawn=False)
    for done in (18, 19, 20):
        shown("rounds", done, 30)
        clock[0] += 2.0
    assert capsys.readouterr().err == "rounds: 20 of 30 (67%), about 20 s left\n"


def test_the_same_work_on_other_samples_begins_anew(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training between two probes takes a minute that belongs to neither, whether they embed as many samples or not."""
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    shown = WorkProgress(redrawn=False)
    for total in (512, 1024, 1024):
        for done in range(512, total + 1, 512):
            shown("embedding samples", done, total)
        clock[0] += 60.0
    assert capsys.readouterr().err == ""


def test_a_bar_is_taken_away(capsys: pytest.CaptureFixture[str]) -> None:
    shown = WorkProgress(redrawn=True, slow=0)
    shown("reading images", 1, 2)
    shown.clear()
    assert capsys.readouterr().err.endswith("\r\x1b[K")


def test_embedding_tells_how_far_it_is() -> None:
    told: list[tuple[str, int, int]] = []
    with listening(lambda *facts: told.append(facts)):
        embed(nn.Flatten(), torch.zeros(10, 1, 4), batch_size=4)
    assert told == [("embedding samples", 4, 10), ("embedding samples", 8, 10), ("embedding samples", 10, 10)]


def test_fine_tuning_and_maps_tell_how_far_they_are() -> None:
    told: list[tuple[str, int, int]] = []
    images, labels = torch.zeros(8, 1, 4), torch.arange(8) % 2
    with listening(lambda *facts: told.append(facts)):
        finetune(nn.Flatten(), 4, images, labels, images, labels, 1.0, torch.Generator(), FineTuning(epochs=2))
        project([np.eye(6), np.eye(6)], "pca", 0)
    assert [fact for fact in told if fact[0] == "fine-tuning"] == [("fine-tuning", 1, 2), ("fine-tuning", 2, 2)]
    assert told[-2:] == [("drawing maps of samples", 1, 2), ("drawing maps of samples", 2, 2)]


def test_runs_from_python_tell_how_far_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, progress in (("shown", True), ("silent", False)):
        monkeypatch.setattr(WorkProgress.__init__, "__defaults__", (0.0,))
        run("digits-smoke", name=name, rounds=2, workers=0, progress=progress)
        said = capsys.readouterr().err
        assert ("rounds: 1 of 2" in said) == ("embedding samples" in said) == progress
