"""A method by name: what is chosen for it, and what is never touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from unisono.config import resolve
from unisono.core.client_data import as_float
from unisono.core.config import parse_overrides
from unisono.experiment import Experiment
from unisono.fitting import BUDGET, estimate_seconds, multiplications, operations_per_round, prepare
from unisono.models.nets import build_seeded
from unisono.recipes import Layer, assemble, flag_layers
from unisono.running import run
from unisono.runs.directory import RunDirectory

DIGITS = {"dataset": "digits", "clients": 20, "rounds": 5}


def fitted(method: str, *settings: str, **flags: object) -> tuple[Experiment, str]:
    layers = [*flag_layers({**DIGITS, **flags}), Layer("--set", parse_overrides(settings))]
    experiment, notes = prepare(assemble(method, layers))
    return experiment, " ".join(notes)


def test_what_nobody_gave_is_chosen_and_said() -> None:
    experiment, notes = fitted("simclr")
    config = experiment.config
    assert config.cohort.size == 10
    assert config.training.learning_rate == 0.01
    assert 1 <= config.training.local_epochs <= 10
    assert "cohort.size = 10" in notes
    assert f"training.local_epochs = {config.training.local_epochs}" in notes
    assert "of training on 2 workers" in notes
    assert fitted("simclr", "engine.workers=1")[1].endswith("of training on 1 worker")


@pytest.mark.parametrize("method", ["simclr", "orchestra"])
def test_a_first_run_fits_two_minutes_of_two_cores(method: str) -> None:
    flags = {"dataset": "fashion-mini", "clients": 50, "alpha": 0.1, "rounds": 20}
    experiment, notes = prepare(assemble(method, flag_layers(flags)))
    assert (experiment.config.model.backbone, experiment.config.cohort.size) == ("convnet", 10)
    assert operations_per_round(experiment) * 20 < 1.5 * BUDGET
    assert "this takes about" in " ".join(notes)


def test_what_the_user_gave_stays() -> None:
    given = ("training.local_epochs=3", "training.learning_rate=0.1", "cohort.size=4", "method.ema=0.5", "views.preset=none")
    experiment, notes = fitted("orchestra", *given, "method.num_global_clusters=99")
    config = experiment.config
    assert (config.training.local_epochs, config.training.learning_rate, config.cohort.size) == (3, 0.1, 4)
    assert config.method.model_dump()["ema"] == 0.5
    assert config.method.model_dump()["num_global_clusters"] == 99
    assert "chosen" not in notes
    assert fitted("simclr", "cohort.participation=0.5")[0].config.cohort.size is None


def test_defaults_of_the_method_stay() -> None:
    config = fitted("fedmcc")[0].config
    assert (config.training.optimizer, config.training.learning_rate, config.training.local_epochs) == ("adam", 3e-4, 5)


def test_views_fit_the_data_unless_the_user_has_an_opinion() -> None:
    assert fitted("orchestra")[0].config.views.preset == "digits"
    assert fitted("orchestra", dataset="fashion-mini")[0].config.views.preset == "clothing"
    assert fitted("simclr", "views.preset=byol")[0].config.views.preset == "byol"
    assert fitted("simclr", "views.flip=0.5")[0].config.views.preset == "simclr"


@pytest.mark.parametrize(
    ("arrays", "settings", "scheme"),
    [
        (("client",), (), "natural"),
        (("client",), ("partition.num_clients=3",), "iid"),
        ((), ("partition.num_clients=3",), "iid"),
        (("y", "client"), ("partition.num_clients=3",), "dirichlet"),
        (("client",), ("partition.scheme=quantity-skew", "partition.num_clients=3"), "quantity-skew"),
    ],
)
def test_own_samples_are_dealt_as_they_came_and_what_is_held_out_is_said(
    tmp_path: Path, arrays: tuple[str, ...], settings: tuple[str, ...], scheme: str
) -> None:
    draw = np.random.default_rng(0)
    values = {name: np.arange(60) % 2 for name in arrays}
    np.savez(tmp_path / "x.npz", x=draw.integers(0, 256, (60, 8, 8), dtype=np.uint8), **values)
    given = [*settings, "data.dataset=npz", f"data.path={tmp_path / 'x.npz'}", "federation.rounds=1"]
    experiment, notes = prepare(assemble("simclr", [Layer("--set", parse_overrides(given))]))
    said = " ".join(notes)
    assert experiment.config.partition.scheme == scheme
    assert (f"partition.scheme = {scheme}" in said) == (scheme in ("natural", "iid"))
    assert "12 of 60 samples are held out for tests (data.test_fraction = 0.2; 0 holds none out)" in said
    none = [*given, "data.test_fraction=0"]
    assert "held out" not in " ".join(prepare(assemble("simclr", [Layer("--set", parse_overrides(none))]))[1])


def test_a_round_brings_four_centroids_for_each_cluster_and_a_target_can_follow() -> None:
    config = fitted("orchestra")[0].config
    options = config.method.model_dump()
    assert config.cohort.size == 10
    assert 4 * options["num_global_clusters"] <= 10 * options["num_local_clusters"]
    assert 0.9 <= options["ema"] <= 0.996
    short, long = (fitted("byol", rounds=rounds)[0].config.method.model_dump()["ema"] for rounds in (1, 200))
    assert 0.9 <= short < long <= 0.996


def test_larger_budgets_of_data_get_fewer_epochs() -> None:
    few, many = (fitted("simclr", rounds=rounds)[0].config.training.local_epochs for rounds in (2, 2000))
    assert few > many == 1


def test_a_small_federation_is_asked_whole() -> None:
    assert fitted("simclr", clients=6)[0].config.cohort.size is None


def test_recipes_choose_nothing() -> None:
    experiment, notes = prepare(assemble("digits-smoke"))
    assert "chosen" not in notes
    assert experiment.config == resolve(assemble("digits-smoke").tree)


def test_the_same_command_gives_the_same_run_and_says_so_in_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["data.limit=200", "data.test_limit=50", "evaluation.probe_every=0", "report.enabled=false"]
    finished = run("simclr", dataset="digits", clients=12, rounds=1, name="a", workers=0, set=small)
    saved = RunDirectory.open(tmp_path / "runs" / "a").config_tree
    assert saved["cohort"]["size"] == 10
    again = run(tmp_path / "runs" / "a" / "config.toml", name="b", workers=0)
    assert finished.server.flatten().keys() == again.server.flatten().keys()
    assert all(torch.equal(again.server.flatten()[name], tensor) for name, tensor in finished.server.flatten().items())


def test_multiplications_by_hand() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))
    net.train()
    assert multiplications(net, torch.zeros(1, 1, 8, 8)) == 4 * 16 * 9 + 640
    assert net.training


def test_operations_of_a_round_by_hand() -> None:
    """Twelve for each multiplication of each sample: ten clients, by epochs over their samples or by steps of a batch."""
    experiment = fitted("simclr", "training.local_epochs=3")[0]
    encoder = build_seeded(experiment.method.build_networks, 0)["encoder"]
    one = 12 * multiplications(encoder, as_float(experiment.dataset.samples[:1]))
    mean_size = len(experiment.dataset.samples) / 20
    assert operations_per_round(experiment) == pytest.approx(one * 10 * mean_size * 3, rel=1e-3)
    steps = fitted("simclr", "training.local_steps=4", "training.batch_size=8")[0]
    assert operations_per_round(steps) == pytest.approx(one * 10 * 4 * 8)
    assert operations_per_round(fitted("federated-kmeans")[0]) == 0


def test_the_estimate_grows_with_the_rounds() -> None:
    short, long = (estimate_seconds(fitted("simclr", "training.local_epochs=1", rounds=r)[0]) for r in (1, 1000))
    assert short is not None
    assert long is not None
    assert long > 10 * short
    assert estimate_seconds(fitted("federated-kmeans")[0]) is None
