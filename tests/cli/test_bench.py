from __future__ import annotations

import json

from tests.cli.conftest import Command


def test_speeds_of_one_and_two_workers(unisono: Command) -> None:
    small = ("--backbone", "cfcl-cnn", "--steps", 1, "--rounds", 1, "--max-workers", 2)
    speeds = json.loads(unisono("bench", *small, "--json").out)["images_per_second"]
    assert set(speeds) == {"1", "2"}
    assert all(speed > 0 for speed in speeds.values())
