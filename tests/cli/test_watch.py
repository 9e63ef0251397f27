from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.conftest import Command, hear_ctrl_c
from unisono.cli.watch_view import LEVELS, seconds_left, sparkline
from unisono.runs.manifest import Manifest


def test_a_finished_run_in_a_terminal(unisono: Command, demo: Path) -> None:
    result = unisono("watch", demo, "--terminal")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "demo: simclr on digits, finished"
    assert lines[1].startswith("rounds 2/2")
    assert max(map(len, lines)) <= 80
    curves = {line.split()[0]: line.split()[1] for line in lines if line.endswith("round 2")}
    assert set(curves) == {"loss", "linear", "knn", "labels-10"}
    assert curves["loss"] in (LEVELS[-1] + LEVELS[0], LEVELS[0] + LEVELS[-1])
    assert "4 of 4 clients answered in round 2" in result.out


def test_an_interrupted_run_says_how_to_go_on(unisono: Command, demo: Path) -> None:
    shutil.rmtree(demo / "checkpoints" / "round-000002")
    out = " ".join(unisono("watch", demo, "--terminal", "--once").out.split())
    assert "interrupted" in out
    assert "unisono resume runs/demo" in out


def test_before_the_first_round(unisono: Command, demo: Path) -> None:
    logs = list(demo.glob("*.jsonl"))
    Manifest(demo).record((), forget=[file.name for file in logs])
    for file in logs:
        file.unlink()
    assert "rounds 0/2" in unisono("watch", demo, "--terminal").out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--port", "70000"], "--port must lie between 0 and 65535, got 70000."),
        (["--once"], "--once goes with --terminal"),
    ],
)
def test_bad_options(unisono: Command, demo: Path, arguments: list[str], expected: str) -> None:
    assert unisono("watch", demo, *arguments).sentence.startswith(expected)


def test_a_port_that_is_taken(unisono: Command, demo: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert unisono("watch", demo, "--no-open", "--port", port).sentence.startswith(f"--port {port} cannot be used")


def test_the_server_answers_until_ctrl_c(demo: Path, tmp_path: Path) -> None:
    script = "from unisono.cli.main import main; main(['watch', 'runs/demo', '--no-open'])"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,  # noqa: PLW1509
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split(" at ")[1].split(",")[0]
        with urllib.request.urlopen(address, timeout=300) as answer:
            assert b"<title>demo</title>" in answer.read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=200), st.integers(1, 40))
def test_a_sparkline_fits_and_shows_both_ends(values: list[float], width: int) -> None:
    drawn = sparkline(values, width)
    assert len(drawn) <= width
    assert set(drawn) <= set(LEVELS)
    if len(set(drawn)) > 1:
        assert {LEVELS[0], LEVELS[-1]} <= set(drawn)


def test_a_sparkline_rises_with_its_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == LEVELS
    assert sparkline([0, 0, 7, 7], 2) == LEVELS[0] + LEVELS[-1]
    assert sparkline([], 5) == ""


def test_time_left_is_the_mean_pace_times_the_rounds_left() -> None:
    timings = [{"seconds": {"train": 1.0, "round": 1.0}}, {"seconds": {"train": 2.0, "round": 2.0, "probe": 1.0}}]
    assert seconds_left(timings, 5) == 6.0
    assert seconds_left([], 5) is None
