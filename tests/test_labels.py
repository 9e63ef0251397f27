"""Hidden labels are hidden: whatever they are, a run with its probes comes out the same to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unisono
from unisono import experiment, fitting
from unisono.config import resolve
from unisono.core.errors import UserError
from unisono.data.datasets import Dataset, load_dataset
from unisono.data.labelled import draw_labelled, hide_labels
from unisono.evaluation.features import embed
from unisono.evaluation.linear import linear_probe
from unisono.experiment import Experiment

METHODS = {
    "simclr": {"label_weight": 1.0, "uv_weight": 1.0, "loss": "info-nce"},
    "specloss": {"label_weight": 1.0},
    "simsiam": {"label_weight": 1.0},
    "semifed": {},
    "cbafed": {"uv_weight": 1.0},
    "supervised": {},
}


def tree(method: str, **tables: Any) -> dict[str, Any]:
    narrow = {"uv_hidden_dim": 16, "uv_dim": 8} if method not in ("supervised",) else {}
    return {
        "method": {"name": method, **METHODS.get(method, {}), **narrow},
        "data": {"dataset": "digits", "limit": 240, "test_limit": 60},
        "partition": {"scheme": "dirichlet-prior", "num_clients": 6, "alpha": 5.0},
        "labels": {"fraction": 0.2},
        "model": {"backbone": "cfcl-cnn"},
        "training": {"batch_size": 16, "learning_rate": 0.05},
        "federation": {"rounds": 2},
        "evaluation": {"probes": ["linear", "knn", "linear-sgd"], "sgd_steps": 20},
        "engine": {"workers": 0},
        **tables,
    }


def shares_memory(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is not None and b is not None and a.data_ptr() == b.data_ptr() and a.shape == b.shape


def results(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in ("metrics.jsonl", "clients.jsonl", "model/encoder.safetensors")}


def run_with(method: str, dataset: Dataset, directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A run on this data set, with the split and the choice of labelled samples that the true labels gave."""
    monkeypatch.setattr(fitting, "load_dataset", lambda config: dataset)
    unisono.run(tree(method, run={"directory": str(directory), "name": "run"}))
    return results(directory / "run")


@pytest.mark.parametrize("method", METHODS)
def test_changing_hidden_labels_changes_no_bit(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(tree(method))
    true = load_dataset(config.data)
    assert true.labels is not None
    split = Experiment.prepare(config).partition
    visible = draw_labelled(true.labels, split, 0.2, seed=0)
    assert 0.15 < float(visible.float().mean()) < 0.25
    monkeypatch.setattr(experiment, "partition_dataset", lambda *_: split)
    monkeypatch.setattr(experiment, "draw_labelled", lambda *_: visible)
    other = torch.where(visible, true.labels, (true.labels + 3) % 10)
    expected = run_with(method, true, tmp_path / "true", monkeypatch)
    assert run_with(method, _relabelled(true, other), tmp_path / "hidden", monkeypatch) == expected
    # The test can fail: a visible label that changes does change the run.
    seen = torch.where(visible, (true.labels + 3) % 10, true.labels)
    assert run_with(method, _relabelled(true, seen), tmp_path / "visible", monkeypatch) != expected


def _relabelled(dataset: Dataset, labels: torch.Tensor) -> Dataset:
    return Dataset(dataset.name, dataset.samples, labels, dataset.test_samples, dataset.test_labels, dataset.class_names)


def test_methods_and_probes_see_the_same_labels() -> None:
    prepared = Experiment.prepare(resolve(tree("simclr")))
    assert prepared.labels is not None
    assert prepared.dataset.labels is not None
    visible = draw_labelled(prepared.dataset.labels, prepared.partition, 0.2, seed=0)
    assert torch.equal(prepared.labels, hide_labels(prepared.dataset.labels, visible))
    assert prepared.clients.labels is prepared.labels
    assert shares_memory(prepared.probe_data().train_labels, prepared.labels)


def test_probes_may_use_all_labels() -> None:
    prepared = Experiment.prepare(resolve(tree("simclr", labels={"fraction": 0.2, "probe": "all"})))
    assert shares_memory(prepared.probe_data().train_labels, prepared.dataset.labels)
    assert prepared.clients.labels is prepared.labels


def test_unsupervised_methods_are_given_no_labels_and_probes_all() -> None:
    prepared = Experiment.prepare(resolve(tree("simclr", labels={}) | {"method": {"name": "simclr"}}))
    assert prepared.clients.labels is None
    assert shares_memory(prepared.probe_data().train_labels, prepared.dataset.labels)


def test_probes_see_training_samples_as_clients_do_and_test_samples_upright() -> None:
    """Louizos et al., 4: "the union of clients' labelled version of their data"; A: "we consider non-rotated images"."""
    prepared = Experiment.prepare(resolve(tree("simclr", shift={"kind": "rotation"})))
    data = prepared.probe_data()
    assert shares_memory(data.train_samples, prepared.clients.samples)
    assert not torch.equal(data.train_samples, prepared.dataset.samples)
    assert data.test_samples is prepared.dataset.test_samples


def test_held_out_samples_are_the_probes_alone_upright_and_the_same_for_every_seed_and_share_of_labels() -> None:
    """Louizos et al., Figure 3c: "a fixed and labelled holdout set which we use to train a LP"."""
    data = {"dataset": "digits", "limit": 240, "test_limit": 60, "probe_fraction": 0.25}
    found = []
    for seed, fraction in ((0, 0.2), (1, 1.0)):
        over = {"data": data, "shift": {"kind": "rotation"}, "labels": {"fraction": fraction}, "run": {"seed": seed}}
        prepared = Experiment.prepare(resolve(tree("simclr", **over)))
        seen = prepared.probe_data()
        assert sum(len(rows) for rows in prepared.partition.indices) == 180
        assert seen.train_labels is not None
        assert (seen.train_labels >= 0).nonzero().flatten().tolist() == list(range(180, 240))
        assert torch.equal(seen.train_samples[:180], prepared.clients.samples)
        found.append((seen.train_samples[180:], seen.train_labels[180:]))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    held_out = load_dataset(resolve(tree("simclr", data=data)).data).probe_samples
    assert held_out is not None
    assert torch.equal(found[0][0], held_out), "they are not rotated"


def test_the_probe_on_held_out_samples_learns_from_nothing_else(tmp_path: Path) -> None:
    data = {"dataset": "digits", "limit": 240, "test_limit": 60, "probe_fraction": 0.25}
    run = unisono.run(tree("simclr", data=data, run={"directory": str(tmp_path), "name": "run"}))
    dataset = load_dataset(run.config.data)
    assert dataset.probe_samples is not None
    assert dataset.probe_labels is not None
    assert dataset.test_labels is not None
    train_x, test_x = (embed(run.encoder, samples) for samples in (dataset.probe_samples, dataset.test_samples))
    expected = linear_probe(train_x, dataset.probe_labels, test_x, dataset.test_labels)
    assert run.metrics[-1]["probe.linear"] == pytest.approx(expected)


def test_label_weight_needs_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((40, 1, 8, 8), dtype=np.uint8))
    unlabelled = {"dataset": "npz", "path": str(tmp_path / "data.npz")}
    with pytest.raises(UserError, match="'simclr' needs labels"):
        Experiment.prepare(resolve(tree("simclr", data=unlabelled, partition={"scheme": "iid", "num_clients": 2})))
