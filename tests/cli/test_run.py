"""What a run prints, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Command, hear_ctrl_c
from unisono import load

UNISONO = (sys.executable, "-m", "unisono")


def test_a_pipe_gets_one_plain_line_per_round_and_a_table(unisono: Command) -> None:
    result = unisono("run", *SMALL, "--name", "a", "--set", "evaluation.probe_every=2")
    assert (result.code, result.err) == (0, "")
    assert "\x1b" not in result.out
    assert "\r" not in result.out
    lines = result.out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("round ")] == ["1/2", "2/2"]
    first, second = (line for line in lines if line.startswith("round "))
    assert "loss" in first
    assert "linear" not in first
    assert "linear" in second
    assert "samples/s" in second
    linear = load("runs/a").metrics[-1]["probe.linear"]
    assert next(line for line in lines if line.startswith("linear")).split() == ["linear", f"{linear:.4f}"]
    assert lines[-3:] == ["Saved in runs/a", "Report: runs/a/report.html", "Clusters and their images: runs/a/gallery.html"]


def test_quiet_prints_the_path_alone(unisono: Command) -> None:
    result = unisono("run", *SMALL, "--name", "a", "--quiet")
    assert (result.out, result.err) == ("runs/a\n", "")


def test_json_is_one_object(unisono: Command) -> None:
    result = unisono("run", *SMALL, "--name", "a", "--seed", "3", "--json")
    content = json.loads(result.out)
    assert result.err == ""
    assert {key: content[key] for key in ("run", "method", "seed", "rounds")} == {
        "run": "runs/a",
        "method": "simclr",
        "seed": 3,
        "rounds": 2,
    }
    assert content["metrics"] == load("runs/a").metrics[-1]


def test_flags_and_settings_reach_the_config(unisono: Command) -> None:
    flags = ("--clients", 5, "--alpha", 0.5, "--seed", 7, "--engine", "embedded", "--set", "training.learning_rate=0.25")
    unisono("run", *SMALL, "--set", "cohort.size=2", *flags, "--name", "a", "--quiet")
    config = load("runs/a").config
    assert (config.partition.num_clients, config.partition.alpha, config.run.seed) == (5, 0.5, 7)
    assert (config.engine.workers, config.engine.kind, config.training.learning_rate) == (0, "embedded", 0.25)


@pytest.fixture
def flaky(tmp_path: Path) -> tuple[str, ...]:
    """All eight clients are asked, and those with an odd number fail."""
    (tmp_path / "flaky.py").write_text(
        "from unisono.methods.simclr import SimCLR\n"
        "class Flaky(SimCLR):\n"
        "    def client_step(self, nets, received, local, data, ctx):\n"
        "        if ctx.client_id % 2:\n"
        "            raise ValueError('no battery')\n"
        "        return super().client_step(nets, received, local, data, ctx)\n"
    )
    return (*SMALL, "--name", "a", "--set", "cohort.size=8", "--set", "method.name=flaky.py:Flaky")


def test_a_failing_client_ends_a_strict_run_with_one_sentence(unisono: Command, flaky: tuple[str, ...]) -> None:
    result = unisono("run", *flaky)
    assert result.code == 1
    entry = json.loads(Path("runs/a/failures.jsonl").read_text().splitlines()[0])
    place = f"round 1, phase train, client {entry['client']}"
    assert result.err == f"error: {place}: ValueError: no battery. Details are in runs/a/failures.jsonl.\n"
    assert "in client_step" in entry["traceback"]


def test_a_tolerant_run_leaves_failing_clients_out_and_says_so(unisono: Command, flaky: tuple[str, ...]) -> None:
    result = unisono("run", *flaky, "--set", "federation.strict=false", "--set", "federation.quorum=0.1")
    assert result.code == 0
    assert "4 of 8 clients answered" in result.out
    shown = " ".join(unisono("show", "runs/a").out.split())
    assert "8, the last: round 2, phase train, client 7: ValueError: no battery" in shown


def test_a_diverging_run_is_the_users_mistake(unisono: Command) -> None:
    sentence = unisono("run", *SMALL, "--quiet", "--set", "training.learning_rate=1e30").sentence
    assert "lower the learning rate" in sentence


def test_interrupting_a_run_says_how_to_continue(tmp_path: Path) -> None:
    command = [*UNISONO, "run", *SMALL, "--rounds", "100000", "--workers", "1", "--name", "a"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,  # noqa: PLW1509
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("round") and line.split()[1].startswith("2/"):
                break
        os.killpg(process.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches the workers too
        _, error = process.communicate(timeout=300)
    saved = load(tmp_path / "runs" / "a").round
    assert process.returncode == 130
    assert saved >= 2
    assert error == f"stopped after round {saved}; continue with 'unisono resume runs/a'\n"
