"""Layers of a warm start survive a resume, and do not pile up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import unisono
from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.evaluation.linear import LinearClassifier
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.runs.checkpoint import Checkpoints
from unisono.runs.directory import RunDirectory
from unisono.runs.probe_layers import ProbeLayers
from unisono.runs.verify import verify


def layer(value: float) -> LinearClassifier:
    return LinearClassifier(torch.full((3, 2), value), torch.full((2,), value), torch.tensor([1, 4]))


def test_the_last_evaluation_at_or_before_a_round(tmp_path: Path) -> None:
    layers = ProbeLayers(tmp_path / "probes", Checkpoints(tmp_path / "checkpoints"))
    assert layers.load(5) == {}
    for round in (5, 10, 15):
        layers.save(round, {"linear-sgd": layer(round)})
    for round, expected in ((4, None), (5, 5), (9, 5), (14, 10), (100, 15)):
        found = layers.load(round)
        assert (float(found["linear-sgd"].bias[0]) if found else None) == expected
    assert layers.load(15)["linear-sgd"].classes.tolist() == [1, 4]


def test_files_that_no_checkpoint_needs_are_removed(tmp_path: Path) -> None:
    """With checkpoints 12 and 13, a resume may need the layers of round 10 and later ones."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    layers = ProbeLayers(tmp_path / "probes", checkpoints)
    for round in range(1, 14):
        if round % 5 == 0:
            layers.save(round, {"linear-sgd": layer(round)})
        checkpoints.save(ServerState(round, Payload({"a": {"x": torch.zeros(1)}})), ClientStateStore(), {})
    assert layers.rounds() == [5, 10]
    layers.save(15, {"linear-sgd": layer(15)})
    assert layers.rounds() == [10, 15]


def test_a_file_that_cannot_be_removed_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(5, "Input/output error", str(path))

    checkpoints = Checkpoints(tmp_path / "checkpoints")
    layers = ProbeLayers(tmp_path / "probes", checkpoints)
    for round in (1, 2):
        layers.save(round, {"linear-sgd": layer(round)})
    checkpoints.save(ServerState(2, Payload({"a": {"x": torch.zeros(1)}})), ClientStateStore(), {})
    monkeypatch.setattr(Path, "unlink", refuse)
    layers.save(3, {"linear-sgd": layer(3)})
    assert layers.rounds() == [1, 2, 3]


class KilledError(Exception):
    pass


class KillAfter(Callback):
    def __init__(self, round: int) -> None:
        self._round = round

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        if state.round == self._round:
            raise KilledError


SETTINGS = [
    "partition.num_clients=4",
    "federation.rounds=7",
    "data.limit=200",
    "data.test_limit=50",
    "model.backbone=cfcl-cnn",
    "evaluation.probe_every=2",
    'evaluation.probes=["linear-sgd"]',
    "evaluation.sgd_steps=5",
    "evaluation.sgd_learning_rate=0.5",
    "engine.workers=0",
]


def run(directory: Path, name: str, *settings: str, callbacks: tuple[Callback, ...] = ()) -> Path:
    assignments = [f"run.directory={directory}", *SETTINGS, *settings]
    unisono.run("simclr", dataset="digits", name=name, set=assignments, callbacks=callbacks)
    return directory / name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("whole"), "whole", "evaluation.warm_start=true")


@pytest.mark.parametrize("killed_at", [1, 2, 5])
def test_a_warm_start_survives_a_resume_to_the_bit(whole: Path, tmp_path: Path, killed_at: int) -> None:
    with pytest.raises(KilledError):
        run(tmp_path, "killed", "evaluation.warm_start=true", callbacks=(KillAfter(killed_at),))
    unisono.resume(tmp_path / "killed")
    assert (tmp_path / "killed" / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_a_changed_layer_is_noticed(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    directory = RunDirectory.open(tmp_path / "run")
    assert not any(verify(directory).values())
    path = sorted((tmp_path / "run" / "probes").iterdir())[-1]
    good = path.read_bytes()
    for place in range(len(good) // 2, len(good), 500):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(UserError, match=rf"{path.name} is damaged .* linear probes start anew"):
            directory.probe_layers.load(7)
    assert [name for name, problem in verify(directory).items() if problem] == [f"probes/{path.stem}"]


def test_it_makes_a_difference_after_the_first_evaluation(whole: Path, tmp_path: Path) -> None:
    cold = run(tmp_path, "cold")
    results = [
        [json.loads(line).get("probe.linear-sgd") for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (whole, cold)
    ]
    assert results[0][1] == results[1][1]
    assert results[0] != results[1]
    assert not (cold / "probes").exists()
