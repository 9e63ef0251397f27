"""Floors: what an encoder that has learnt nothing scores, by the same probes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from unisono.core.client_data import as_float
from unisono.core.context import Context
from unisono.evaluation import floors
from unisono.evaluation.config import EvaluationConfig
from unisono.evaluation.floors import (
    FLOORS,
    PCA,
    PIXELS,
    UNTRAINED,
    Pixels,
    PrincipalComponents,
    cache_directory,
    floor_rows,
    mean_floors,
    measure_floors,
    verdict,
)
from unisono.evaluation.label_probes import class_balanced
from unisono.evaluation.linear import linear_probe
from unisono.evaluation.probe_data import ProbeData
from unisono.evaluation.probes import run_probes


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNISONO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data() -> ProbeData:
    """Images whose class is a bright quarter, so that pixels tell it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (240,), generator=generator)
    images = torch.randint(0, 120, (240, 1, 8, 8), generator=generator, dtype=torch.uint8)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[0, row : row + 4, column : column + 4] += 60
    return ProbeData(images[:160], labels[:160], images[160:], labels[160:])


def test_pixels_are_the_values_themselves_and_large_samples_are_averaged() -> None:
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(Pixels()(x), x.flatten(1))
    large = torch.rand(2, 3, 128, 96)
    assert Pixels()(large).shape[1] <= 4096
    assert torch.allclose(Pixels()(torch.full((1, 3, 128, 128), 0.25)), torch.tensor(0.25))
    assert Pixels()(torch.rand(2, 6, 5000)).shape == (2, 6 * (4096 // 6))


def test_principal_components_are_those_of_an_eigendecomposition(data: ProbeData) -> None:
    found = PrincipalComponents(data.train_samples)
    values = as_float(data.train_samples).flatten(1).double()
    centred = values - values.mean(dim=0)
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    features = found(as_float(data.train_samples)).double()
    assert features.shape == (160, 64)
    expected = centred @ vectors.flip(dims=[1])
    torch.testing.assert_close(features[:, :5].abs(), expected[:, :5].abs(), atol=1e-3, rtol=1e-3)


def test_floors_have_the_scores_of_the_same_probes(data: ProbeData) -> None:
    config = EvaluationConfig(probes=("linear", "knn", "labels-10", "finetune-1"), knn_neighbors=5)
    untrained = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).eval()
    found = measure_floors(config, data, untrained, clusters=False)
    assert list(found) == list(FLOORS)
    alone = config.model_copy(update={"probes": ("linear", "knn", "labels-10")})
    assert found[PIXELS] == run_probes(alone, nn.Flatten(), None, data, Context(0), None)
    assert found[UNTRAINED] == run_probes(alone, untrained, None, data, Context(0), None)
    assert found[PIXELS]["linear"] > 0.9


def test_clusters_are_compared_with_kmeans(data: ProbeData) -> None:
    found = measure_floors(EvaluationConfig(), data, nn.Flatten(), clusters=True)
    assert {"linear", "knn", "labels-10", "cluster-accuracy", "nmi", "ari"} <= found[PCA].keys()
    assert found[PCA]["cluster-accuracy"] == found[PCA]["kmeans-accuracy"]


def test_floors_are_measured_once(data: ProbeData, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, untrained = EvaluationConfig(probes=("knn",)), nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).eval()
    first = measure_floors(config, data, untrained, clusters=False)
    assert len(list(cache_directory().glob("*.json"))) == 3
    calls: list[int] = []

    def counted(*arguments: object, **more: object) -> dict[str, float]:
        calls.append(1)
        return {"knn": 0.5}

    monkeypatch.setattr(floors, "run_probes", counted)
    assert measure_floors(config, data, untrained, clusters=False) == first
    assert calls == []
    other = ProbeData(data.train_samples + 1, data.train_labels, data.test_samples, data.test_labels)
    measure_floors(config, other, untrained, clusters=False)
    assert len(calls) == 3, "other samples have other floors"
    measure_floors(config, data, nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).eval(), clusters=False)
    assert len(calls) == 4, "another network has other untrained weights, and the same pixels"
    for path in cache_directory().glob("*.json"):
        path.write_text("{torn")
    measure_floors(config, data, untrained, clusters=False)
    assert len(calls) == 7, "a damaged file is measured again"


def test_scores_without_labels_of_floors_depend_on_projector_views_and_clients(data: ProbeData) -> None:
    config, untrained = EvaluationConfig(probes=("alignment",)), nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).eval()
    halves = [torch.arange(80), torch.arange(80, 160)]

    def darker(x: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return (x - 0.1 * torch.rand(x.shape, generator=generator)).clamp(0, 1), x

    def flipped(x: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return x.flip(3), x

    first = measure_floors(config, data, untrained, False, darker, halves)
    assert measure_floors(config, data, untrained, False, flipped, halves)[PIXELS] != first[PIXELS]
    assert measure_floors(config, data, untrained, False, darker, [torch.arange(160)])[PIXELS] != first[PIXELS]
    projected = measure_floors(config, data, untrained, False, darker, halves, untrained_projector=nn.Linear(3, 2).eval())
    assert projected[PIXELS] == first[PIXELS]
    assert projected[UNTRAINED]["encoder-score"] == pytest.approx(first[UNTRAINED]["score"])
    assert projected[UNTRAINED]["score"] != first[UNTRAINED]["score"]


def test_ten_labels_per_class_are_the_mean_of_five_fits(data: ProbeData) -> None:
    config = EvaluationConfig(probes=("labels-10",))
    found = run_probes(config, nn.Flatten(), None, data, Context(3), None)["labels-10"]
    assert data.train_labels is not None
    assert data.test_labels is not None
    generator = Context(3).rng("probe-labels-10")
    train, test = (as_float(samples).flatten(1) for samples in (data.train_samples, data.test_samples))
    scores = []
    for _ in range(5):
        rows = class_balanced(data.train_labels, 40, generator)
        assert data.train_labels[rows].bincount().tolist() == [10] * 4
        scores.append(linear_probe(train[rows], data.train_labels[rows], test, data.test_labels))
    assert found == pytest.approx(sum(scores) / 5)


def test_verdict_says_which_floor_and_why() -> None:
    scores = {PIXELS: {"linear": 0.85, "knn": 0.7}, UNTRAINED: {"linear": 0.8, "knn": 0.6}}
    above, sentence = verdict({"linear": 0.9, "knn": 0.75, "align": 0.1}, scores)
    assert above
    assert sentence == (
        "The encoder beats every floor: linear 90.0, 5.0 above raw pixels, 10.0 above untrained weights (points)."
    )
    above, sentence = verdict({"linear": 0.82, "knn": 0.75}, scores)
    assert not above
    assert "below a floor in linear (82.0 against 85.0 of raw pixels): the likely causes are" in sentence
    for word in ("federation.rounds", "training.learning_rate", "views.preset", "model.backbone"):
        assert word in sentence
    assert verdict({"align": 0.3}, scores) == (True, "")
    assert verdict({"linear": 0.3}, {}) == (True, "")


def test_clusters_are_judged_where_the_encoder_was_not_probed() -> None:
    scores = {PIXELS: {"linear": 0.85, "cluster-accuracy": 0.5}}
    above, sentence = verdict({"cluster-accuracy": 0.9, "kmeans-accuracy": 0.4}, scores)
    assert (above, sentence) == (True, "The clusters beat every floor: cluster-accuracy 90.0, 40.0 above raw pixels (points).")
    above, sentence = verdict({"cluster-accuracy": 0.4}, scores)
    assert not above
    assert sentence.startswith("The clusters end below a floor in cluster-accuracy (40.0 against 50.0 of raw pixels): ")
    above, sentence = verdict({"linear": 0.9, "cluster-accuracy": 0.4}, scores)
    assert above, "the encoder counts where it was probed"
    assert "Its clusters are not above every floor: cluster-accuracy 40.0, k-means on " in sentence


def test_rows_of_floors_are_shared_where_groups_agree_and_apart_where_they_do_not() -> None:
    seeds = [{PIXELS: {"knn": 0.7}, UNTRAINED: {"knn": 0.5}}, {PIXELS: {"knn": 0.7}, UNTRAINED: {"knn": 0.6}}, {}]
    a = mean_floors(seeds)
    assert a == {PIXELS: {"knn": 0.7}, UNTRAINED: {"knn": pytest.approx(0.55)}}
    b = {PIXELS: {"knn": 0.7, "linear": 0.8}, UNTRAINED: {"knn": 0.4}}
    assert floor_rows({"a": a, "b": b, "without": {}}) == {
        PIXELS: {"knn": 0.7, "linear": 0.8},
        f"{UNTRAINED}, a": a[UNTRAINED],
        f"{UNTRAINED}, b": b[UNTRAINED],
    }


def test_floors_have_the_linear_probes_of_public_codes(data: ProbeData) -> None:
    probes = ("linear-orchestra", "linear-easyfl", "linear-adam", "finetune-1")
    config = EvaluationConfig(probes=probes, orchestra_epochs=2, easyfl_linear_epochs=2, sgd_steps=20)
    untrained = nn.Sequential(nn.Flatten(), nn.Linear(64, 8)).eval()
    found = measure_floors(config, data, untrained, clusters=False, crop_flip=lambda x, generator: x)
    assert all(set(found[name]) == set(probes[:3]) for name in FLOORS)


def test_floors_are_measured_on_the_training_samples_where_nothing_is_held_out(data: ProbeData) -> None:
    empty = data.test_samples[:0]
    whole = ProbeData(data.train_samples, data.train_labels, empty, None, data.train_labels)
    untrained = nn.Sequential(nn.Flatten(), nn.Linear(64, 8)).eval()
    found = measure_floors(EvaluationConfig(), whole, untrained, clusters=True)
    as_test = ProbeData(data.train_samples, data.train_labels, data.train_samples, data.train_labels)
    expected = run_probes(EvaluationConfig(probes=("kmeans",)), Pixels(), None, as_test, Context(0), None)
    assert found[PIXELS]["nmi"] == found[PIXELS]["kmeans-nmi"] == expected["kmeans-nmi"]
