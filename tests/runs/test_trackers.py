"""Trackers: what they are told is what the run logs. MLflow and Weights & Biases have stand-ins: few have them installed."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.federation.loop import RoundRecord, ServerState
from unisono.runs import trackers
from unisono.runs.directory import RunDirectory
from unisono.runs.trackers import TrackConfig, Tracking, check_trackers

TREE = {"format": 1, "run": {"seed": 3, "name": None}, "method": {"name": "simclr"}}


class FakeClient:
    runs: dict[str, dict[str, Any]] = {}
    uris: list[str | None] = []

    def __init__(self, tracking_uri: str | None) -> None:
        self.uris.append(tracking_uri)

    def get_experiment_by_name(self, name: str) -> Any:
        return None if name == "new" else SimpleNamespace(experiment_id="7")

    def create_experiment(self, name: str) -> str:
        return "8"

    def create_run(self, experiment: str, run_name: str) -> Any:
        run_id = f"run{len(self.runs)}"
        self.runs[run_id] = {"experiment": experiment, "name": run_name, "params": {}, "metrics": [], "ended": False}
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self.runs[run_id]["params"].update(dict(params))
        self.runs[run_id]["metrics"] += [(name, value, step) for name, value, _, step in metrics]

    def set_terminated(self, run_id: str) -> None:
        self.runs[run_id]["ended"] = True


class FakeWandB:
    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.logged: list[tuple[dict[str, float], int]] = []
        self.finished = 0

    def init(self, **options: Any) -> Any:
        self.calls.append(options)
        run = SimpleNamespace(id=options["id"] or "abc")
        run.log = lambda values, step: self.logged.append((values, step))
        run.finish = self._finish
        return run

    def _finish(self) -> None:
        self.finished += 1


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)
    for key, value in content.items():
        setattr(made, key, value)
    monkeypatch.setitem(sys.modules, name, made)


def run_through(config: TrackConfig, path: Path, rounds: range, num_rounds: int) -> list[str]:
    """Notes of the rounds."""
    directory = RunDirectory(path)
    tracking = Tracking(config, directory, TREE, num_rounds)
    tracking.on_run_start(ServerState(rounds.start, Payload()))
    notes = []
    for round in rounds:
        record = RoundRecord(round, bytes_up=10, metrics={"loss": 0.5, "probe.linear": 0.7}, seconds={"round": 1.5})
        tracking.on_round_end(ServerState(round + 1, Payload()), record)
        notes += record.notes
    return notes


def test_off_by_default(tmp_path: Path) -> None:
    check_trackers(TrackConfig())
    run_through(TrackConfig(), tmp_path, range(2), 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", trackers.PACKAGES)
def test_a_missing_package_is_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=rf"track\.{name} needs the package {name}: pip install {name}"):
        check_trackers(TrackConfig(**{name: True}))
    monkeypatch.setattr(trackers, "find_spec", lambda _: object())
    check_trackers(TrackConfig(**{name: True}))


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run_through(TrackConfig(tensorboard=True), tmp_path, range(3), 3) == []
    assert run_through(TrackConfig(tensorboard=True), tmp_path, range(1, 3), 3) == [], "a resumed run goes on"
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, round(event.value, 4)) for event in events.Scalars("probe/linear")] == [(1, 0.7), (2, 0.7), (3, 0.7)]
    assert [event.value for event in events.Scalars("seconds/round")] == [1.5] * 3


def test_mlflow_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    (tmp_path / "run").mkdir()
    config = TrackConfig(mlflow=True, mlflow_uri=uri)
    assert run_through(config, tmp_path / "run", range(1), 2) == []
    assert run_through(config, tmp_path / "run", range(1, 2), 2) == [], "a resumed run goes on"
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("unisono").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params == {"run.seed": "3", "method.name": "simclr"}
    assert [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "loss")] == [(1, 0.5), (2, 0.5)]


def test_mlflow_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "mlflow", MlflowClient=FakeClient)
    module(monkeypatch, "mlflow.entities", Metric=lambda *parts: parts, Param=lambda *parts: parts)
    FakeClient.runs.clear()
    config = TrackConfig(mlflow=True, mlflow_uri="http://localhost:5000", project="new")
    run_through(config, tmp_path, range(1), 2)
    assert not FakeClient.runs["run0"]["ended"]
    run_through(config, tmp_path, range(1, 2), 2)
    (run,) = FakeClient.runs.values()
    assert (run["experiment"], run["name"], run["ended"]) == ("8", tmp_path.name, True)
    assert run["params"] == {"run.seed": "3", "method.name": "simclr"}
    assert [entry for entry in run["metrics"] if entry[0] == "loss"] == [("loss", 0.5, 1), ("loss", 0.5, 2)]
    assert set(FakeClient.uris) == {"http://localhost:5000"}


def test_wandb_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandB()
    module(monkeypatch, "wandb", init=fake.init)
    run_through(TrackConfig(wandb=True), tmp_path, range(1), 2)
    run_through(TrackConfig(wandb=True), tmp_path, range(1, 2), 2)
    assert [call["id"] for call in fake.calls] == [None, "abc"]
    assert fake.calls[0]["config"] == {"run.seed": 3, "method.name": "simclr"}
    assert fake.calls[0]["project"] == "unisono"
    assert [step for _, step in fake.logged] == [1, 2]
    assert fake.logged[0][0]["bytes_up"] == 10
    assert fake.finished == 1


def test_a_tracker_that_cannot_begin_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: object) -> None:
        raise ConnectionError("no\nnetwork")

    module(monkeypatch, "wandb", init=fail)
    with pytest.raises(UserError, match=r"track\.wandb could not begin \(ConnectionError: no network\): .*unisono resume"):
        run_through(TrackConfig(wandb=True), tmp_path, range(1), 1)


def test_a_tracker_that_fails_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(values: object, step: int) -> None:
        raise ConnectionError("no network")

    module(monkeypatch, "wandb", init=lambda **options: SimpleNamespace(id="abc", log=fail))
    notes = run_through(TrackConfig(wandb=True), tmp_path, range(3), 3)
    assert notes == ["track.wandb failed and is left out from now on: ConnectionError: no network"]
