from __future__ import annotations

import json
from pathlib import Path

import pytest

from unisono.core.errors import UserError
from unisono.studies.history import (
    History,
    TimeToTarget,
    ValueAt,
    axis_of,
    in_percent,
    logged_name,
    parse_time_to_target,
    parse_value_at,
)


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
        ("transmission", [8, 16, 20]),
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
    assert history.value("delay to linear 0.6") == pytest.approx(13.5), "half of the way from 9 to 18"
    assert history.value("steps to linear 0.55") == pytest.approx(25), "a quarter of the way from 20 to 40"
    assert history.value("steps to linear 0.4") == pytest.approx(20), "reached before the first evaluation"
    assert history.value("rounds to linear 0.71") is None
    assert history.value("megabytes") == pytest.approx(15)


def test_values_at_a_place(history: History) -> None:
    assert history.value("linear at transmission 12") == pytest.approx(0.6), "half of the way from 8 to 16"
    assert history.value("linear at transmission 8") == 0.5
    assert history.value("linear at delay 22.5") == pytest.approx(0.6)
    assert history.value("linear at delay 8.9") is None, "before the first evaluation"
    assert history.value("linear at delay 22.6") is None, "after the last"
    assert history.value("knn at delay 10") is None


def test_mean_over_rounds(history: History) -> None:
    assert history.value("mean loss") == pytest.approx((5 + 4 + 3 + 2 + 1) / 5)
    assert history.value("mean linear") == pytest.approx((0.5 + 0.7 + 0.6) / 3)
    assert history.value("mean knn") is None


def test_a_curve_may_begin_before_the_first_round(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [None, 0.5, None, 0.7, 0.6])
    (path / "start.json").write_text(json.dumps({"round": -1, "bytes_down": 0, "bytes_up": 0, "probe.linear": 0.3}))
    history = History(path)
    for axis in ("rounds", "steps", "megabytes", "seconds", "delay", "transmission"):
        assert history.curve("linear", axis)[0] == (0, 0.3)  # type: ignore[arg-type]
    assert history.value("steps to linear 0.4") == pytest.approx(10), "half of the way from 0 to 20"
    assert history.value("steps to linear 0.2") == 0
    assert history.value("linear at transmission 2") == pytest.approx(0.35)
    assert history.value("linear") == 0.6
    assert len(history.records) == 6


def test_a_share_of_the_way_needs_the_other_runs(history: History) -> None:
    assert history.value("steps to 50% of linear", 0.6) == pytest.approx(30)
    assert history.value("rounds to 50% of linear", 0.6) == 4
    with pytest.raises(UserError, match="compares the runs of a study"):
        history.value("steps to 50% of linear")


def test_forms_of_metrics() -> None:
    assert parse_time_to_target("steps to 12.5% of linear-sgd") == TimeToTarget("steps", "linear-sgd", 0.125, relative=True)
    assert parse_value_at("linear at delay 50") == ValueAt("linear", "delay", 50.0)
    assert parse_value_at("steps to linear 0.5") is None
    names = ["linear", "mean loss", "steps to 50% of knn", "rounds to knn 0.5", "linear at delay 50"]
    assert [logged_name(name) for name in names] == ["linear", "loss", "knn", "knn", "linear"]
    assert [axis_of(name) for name in names] == [None, None, "steps", "rounds", "delay"]
    assert [in_percent(name) for name in names] == [True, False, False, False, True]
    with pytest.raises(UserError, match="counts 'hours'; known are rounds"):
        parse_value_at("linear at hours 5")


def test_names_of_efforts() -> None:
    assert parse_time_to_target("rounds to linear-sgd 0.8") == TimeToTarget("rounds", "linear-sgd", 0.8)
    assert parse_time_to_target("linear") is None
    with pytest.raises(UserError, match=r"counts 'epochs'; known are rounds, steps"):
        parse_time_to_target("epochs to linear 0.8")
    with pytest.raises(UserError, match="must have a number at its end"):
        parse_time_to_target("rounds to linear 0.8.1")
    assert in_percent("linear")
    assert not in_percent("rounds to linear 0.8")
    assert all(map(in_percent, ["linear-orchestra", "linear-easyfl", "head-easyfl-1", "finetune-orchestra-10"]))


def test_an_empty_directory(tmp_path: Path) -> None:
    history = History(tmp_path)
    assert (history.seconds, history.value("linear"), history.probes(), history.curve("loss", "rounds")) == (0.0, None, {}, [])
