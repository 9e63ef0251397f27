from __future__ import annotations

import json
from pathlib import Path

import pytest

from unisono.core.errors import UserError
from unisono.studies.history import History, TimeToTarget, in_percent, parse_time_to_target


def write_run(path: Path, values: list[float | None], steps: int = 10) -> Path:
    """A run that moves 3 MB a round, takes 2 seconds for it, and is probed where there is a value."""
    path.mkdir(parents=True, exist_ok=True)
    metrics, timings = [], []
    for round, value in enumerate(values):
        entry = {
            "round": round,
            "bytes_down": 2_000_000,
            "bytes_up": 1_000_000,
            "loss": 5.0 - round,
            "steps": steps * (round + 1),
        }
        entry |= {"delay_seconds": 4.0 * (round + 1)}
        metrics.append(entry if value is None else {**entry, "probe.linear": value})
        timings.append({"round": round, "seconds": {"round": 2.0, "exchange_slowest": 0.5}})
    (path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in metrics))
    (path / "timings.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in timings))
    return path


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(write_run(tmp_path / "run", [None, 0.5, None, 0.7, 0.6]))


def test_the_last_value_counts_not_the_best(history: History) -> None:
    assert history.value("linear") == 0.6
    assert history.value("loss") == 1.0
    assert history.value("knn") is None
    assert history.probes() == {"linear": 0.6}
    assert history.seconds == 10.0


@pytest.mark.parametrize(
    ("axis", "places"),
    [
        ("rounds", [2, 4, 5]),
        ("steps", [20, 40, 50]),
        ("megabytes", [6, 12, 15]),
        ("seconds", [4, 8, 10]),
        ("delay", [9, 18, 22.5]),
    ],
)
def test_curves_over_every_axis(history: History, axis: str, places: list[float]) -> None:
    curve = history.curve("linear", axis)  # type: ignore[arg-type]
    assert [place for place, _ in curve] == pytest.approx(places)
    assert [value for _, value in curve] == [0.5, 0.7, 0.6]


def test_the_effort_to_reach_a_value(history: History) -> None:
    assert history.value("rounds to linear 0.5") == 2
    assert history.value("rounds to linear 0.55") == 4
    assert history.value("megabytes to linear 0.7") == pytest.approx(12)
    assert history.value("delay to linear 0.6") == pytest.approx(18)
    assert history.value("rounds to linear 0.71") is None
    assert history.value("megabytes") == pytest.approx(15)


def test_names_of_efforts() -> None:
    assert parse_time_to_target("rounds to linear-sgd 0.8") == TimeToTarget("rounds", "linear-sgd", 0.8)
    assert parse_time_to_target("linear") is None
    with pytest.raises(UserError, match=r"counts 'epochs'; known are rounds, steps"):
        parse_time_to_target("epochs to linear 0.8")
    with pytest.raises(UserError, match="must end with a number"):
        parse_time_to_target("rounds to linear 0.8.1")
    assert in_percent("linear")
    assert not in_percent("rounds to linear 0.8")


def test_an_empty_directory(tmp_path: Path) -> None:
    history = History(tmp_path)
    assert (history.seconds, history.value("linear"), history.probes(), history.curve("loss", "rounds")) == (0.0, None, {}, [])
