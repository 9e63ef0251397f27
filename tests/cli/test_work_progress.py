"""Progress of reading and embedding, on stderr."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unisono.cli.work_progress import WorkProgress, shown_progress
from unisono.core.progress import listening, tell
from unisono.evaluation.features import embed


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
