from __future__ import annotations

import io
from itertools import count

import pytest
from rich.console import Console

from unisono.cli.progress import Progress, headline
from unisono.cli.run_progress import RunProgress
from unisono.config import Config, resolve
from unisono.core.errors import ClientError
from unisono.core.payload import Payload
from unisono.federation.client_turn import ClientStats
from unisono.federation.loop import RoundRecord, ServerState


@pytest.fixture
def config() -> Config:
    return resolve({"method": {"name": "simclr"}, "federation": {"rounds": 20}, "cohort": {"size": 10}})


def watch(progress: Progress) -> None:
    """Six rounds with a probe in the fifth, and part of a seventh in which a client fails."""
    with progress:
        for round in range(6):
            progress.on_round_start(round, 10)
            for client_id in range(10):
                progress.on_client_end("train", ClientStats(client_id, 200, 0, 0, 0.1, {}))
            probes = {"probe.linear": 0.7125, "probe.knn": 0.5} if round == 4 else {}
            record = RoundRecord(round, 10, 10, metrics={"loss": 2.5 - round, **probes}, seconds={"round": 4.0})
            progress.on_round_end(ServerState(round + 1, Payload()), record)
        progress.on_round_start(6, 10)
        progress.on_client_end("train", ClientStats(0, 200, 0, 0, 0.1, {}))
        progress.on_client_failure(ClientError(6, "train", 3, "no battery"))


def test_terminal_shows_bars_in_80_columns_and_keeps_probe_rounds(config: Config) -> None:
    file = io.StringIO()
    progress = Progress(config, Console(file=file, force_terminal=True, color_system=None, width=80), redrawn=True)
    progress.run = RunProgress(20, config.training, clock=map(float, count()).__next__)
    watch(progress)
    text = file.getvalue()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is hidden"
    assert "round  5/20  loss -1.5000  linear 0.7125  knn 0.5000  500 samples/s" in text
    assert "round  4/20" not in text
    assert "rounds  6/20 " in text
    assert "clients 1/10 " in text
    assert " left" in text
    assert "loss -2.5000  500 samples/s  linear 0.7125  knn 0.5000 (round 5)  1 failed" in text


def test_file_gets_a_line_per_round(config: Config) -> None:
    file = io.StringIO()
    watch(Progress(config, Console(file=file)))
    lines = file.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == [f"{round}/20" for round in range(1, 7)]
    assert lines[4] == "round  5/20  loss -1.5000  linear 0.7125  knn 0.5000  500 samples/s"


def test_a_line_with_probes_of_long_names_leaves_the_speed_out(config: Config) -> None:
    """A terminal of 80 columns would cut it."""
    for name, is_said in (("view-agreement", False), ("knn", True)):
        file = io.StringIO()
        progress = Progress(config, Console(file=file, force_terminal=True, color_system=None, width=80), redrawn=False)
        with progress:
            progress.on_round_start(9, 1)
            progress.on_client_end("train", ClientStats(0, 26580, 0, 0, 0.1, {}))
            probes = {f"probe.{name}": 0.2035, "probe.effective-rank": 571.4858}
            record = RoundRecord(9, 1, 1, metrics={"loss": 1.0454, **probes}, seconds={"round": 10.0})
            progress.on_round_end(ServerState(10, Payload()), record)
        (line,) = file.getvalue().splitlines()
        assert line.startswith(f"round 10/20  loss 1.0454  {name} 0.2035  effective-rank 571.4858")
        assert ("2,658 samples/s" in line) == is_said
        assert "…" not in line


def test_forced_colours_bring_no_control_characters_into_a_file(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = io.StringIO()
    watch(Progress(config, Console(file=file)))
    assert "\x1b" not in file.getvalue()


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        (
            {},
            "simclr on fashion-mini, 50 clients (dirichlet, alpha 0.1)\n20 rounds, 10 clients each, a fitting network, seed 0",
        ),
        ({"partition": {"scheme": "iid"}}, "50 clients (iid)"),
        ({"partition": {"scheme": "natural"}}, "clients as the data set has them"),
        ({"cohort": {"participation": 0.25}}, "25% of clients each"),
        ({"cohort": {}}, "all clients each"),
        ({"model": {"width": 0.25}}, "a fitting network x 0.25"),
    ],
)
def test_headline(over: dict[str, dict[str, object]], expected: str) -> None:
    tree = {"method": {"name": "simclr"}, "cohort": {"size": 10}} | over
    assert expected in headline(resolve(tree))


@pytest.mark.parametrize("redrawn", [True, False])
def test_notes_are_shown_with_their_round(config: Config, redrawn: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=redrawn, color_system=None, width=80)
    with Progress(config, console, redrawn=redrawn) as progress:
        progress.on_round_start(3, 10)
        progress.on_round_end(ServerState(4, Payload()), RoundRecord(3, 10, 10, notes=["the clusters are collapsing"]))
    assert "note: round 4: the clusters are collapsing" in file.getvalue()
