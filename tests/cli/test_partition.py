from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.cli.conftest import Command
from unisono.cli.partition import BARS, bar

DIGITS = ("partition", "--dataset", "digits")


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split() and line.split()[0].isdigit()]


def test_table_counts_every_sample_once(unisono: Command) -> None:
    text = unisono(*DIGITS, "--clients", 8).out
    assert [row[0] for row in rows(text)] == [str(client) for client in range(8)]
    assert sum(int(row[1]) for row in rows(text)) == 1438
    assert "1,438 samples of 8 clients" in text
    assert max(map(len, text.splitlines())) <= 80


def test_whole_classes_have_one_bar_each(unisono: Command) -> None:
    text = unisono(*DIGITS, "--clients", 10, "--scheme", "whole-classes").out
    assert all(row[2:4] == ["1", "100%"] and row[4] == BARS[-1] for row in rows(text))


def test_seed_and_alpha_decide(unisono: Command) -> None:
    first, again, other = (unisono(*DIGITS, "--clients", 8, "--seed", seed).out for seed in (0, 0, 1))
    assert first == again != other
    spread = [float(unisono(*DIGITS, "--alpha", alpha).out.partition("; ")[2].split()[0]) for alpha in (0.01, 100)]
    assert spread[0] < 3
    assert spread[1] > 9


def test_many_clients_are_summarised(unisono: Command) -> None:
    text = unisono(*DIGITS, "--clients", 100).out
    assert len(rows(text)) == 10
    assert "90 more clients" in text
    assert len(rows(unisono(*DIGITS, "--clients", 100, "--all").out)) == 100


def test_recipe_gives_data_and_split(unisono: Command) -> None:
    assert "1,438 samples of 8 clients" in unisono("partition", "digits-smoke").out


def test_picture(unisono: Command, tmp_path: Path) -> None:
    assert unisono(*DIGITS, "--clients", 8, "--plot", "split.png").code == 0
    with Image.open(tmp_path / "split.png") as image:
        assert min(image.size) > 100


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([0, 10, 0], f" {BARS[-1]} "),
        ([1, 1], BARS[4] * 2),
        ([1] * 8, BARS[1] * 8),
        ([0, 0], "  "),
        ([1] + [0] * 39, BARS[-1] + " " * 19),
    ],
)
def test_bar(counts: list[int], expected: str) -> None:
    assert bar(torch.tensor(counts), BARS) == expected


def test_rotations_are_shown_and_drawn(unisono: Command, tmp_path: Path) -> None:
    shifted = (*DIGITS, "--clients", 8, "--set", "shift.kind=rotation", "--set", "shift.alpha=0.0001")
    text = unisono(*shifted, "--plot", "split.png").out
    assert "rotated by 1.0 of 10 bins" in " ".join(text.split())
    assert "rotations 0 to 360" in text
    assert all(row[-1] == BARS[-1] for row in rows(text))
    assert max(map(len, text.splitlines())) <= 80
    with Image.open(tmp_path / "split.png") as image:
        assert image.width > 1.5 * image.height
    assert "rotat" not in unisono(*DIGITS, "--clients", 8).out
