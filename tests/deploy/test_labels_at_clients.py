"""Labels that stay at the clients: who may use them, what becomes of rare ones, and what four methods learn from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from tests.attacks import attack
from tests.deploy.running import _stripes
from tests.deploy.test_client import NUM_CLIENTS, RUN_INFO, Clients, Run, as_run_info, question, request
from unisono.config import resolve
from unisono.core.config import merge
from unisono.core.errors import ClientError, UserError
from unisono.data.datasets import DataConfig
from unisono.deploy.negotiation import load_client_data, visible_labels
from unisono.deploy.server import check_labels
from unisono.engines.embedded import EmbeddedEngine, EngineConfig
from unisono.engines.shards import WorkerSetup
from unisono.federation.client_store import ClientStateStore
from unisono.federation.client_turn import FederatedDataset
from unisono.federation.loop import RoundLoop
from unisono.federation.postprocess import Postprocessor

WIDE, NARROW, RARE = "wide", "narrow", "rare"
LABELS: dict[str, Any] = {"labels": {"use": True, "classes": [WIDE, NARROW, RARE], "min_per_class": 10}}
LABELLED: dict[str, Any] = {
    "method": {"name": "supervised"},
    "data": {"channels": 1},
    "model": {"width": 0.125},
    "training": {"batch_size": 16, "local_epochs": 1},
    "federation": {"rounds": 2},
    "privacy": {"secure_aggregation": True},
    "labels": {"classes": [NARROW, WIDE, RARE]},
    "views": {"preset": "simclr"},
}
METHODS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "simclr": {"projection_dim": 8, "label_weight": 1.0},
    "semifed": {},
    "cbafed": {},
}


def write_classes(path: Path, number: int) -> Path:
    """Stripes of two widths; every third is unlabelled, and client 0 has three of a rare kind. Client 1 has folders."""
    generator = np.random.default_rng(number)
    kinds = [(WIDE, NARROW, "other")[index % 3] for index in range(40 + 12 * number)]
    kinds[:3] = [RARE] * 3 if number == 0 else kinds[:3]
    samples = np.stack([_stripes(generator, {WIDE: 0.6, RARE: 1.6}.get(kind, 2.6)) for kind in kinds])
    if number != 1:
        np.savez(path.with_suffix(".npz"), x=samples, y=np.array(kinds))
        return path.with_suffix(".npz")
    from PIL import Image

    for index, (kind, sample) in enumerate(zip(kinds, samples, strict=True)):
        (path / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(sample).save(path / kind / f"{index:03d}.png")
    return path


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    root = tmp_path_factory.mktemp("labelled")
    made = Clients(root)
    for number in range(NUM_CLIENTS):
        data = write_classes(root / f"classes-{number}", number)
        layout = "classes" if data.is_dir() else "flat"
        made.restart(number, data=str(data), layout=layout, bounds={"max_attempts": 100}, **LABELS)
    return made


def embedded(clients: Clients, tree: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The server's networks after the same run with all samples and labels in one place."""
    config = resolve(merge(tree, {"privacy": {"secure_aggregation": False}}))
    method = config.method_class(config.method, as_run_info({**RUN_INFO, "num_classes": 3}, config))
    data = [load_client_data(directory, DataConfig(channels=1)) for directory in clients.directories]
    labels = [visible_labels(d, config.labels.classes, c.config) for d, c in zip(data, clients.directories, strict=True)]
    indices = torch.arange(sum(len(part.samples) for part in data)).split([len(part.samples) for part in data])
    whole = FederatedDataset(torch.cat([part.samples for part in data]), indices, torch.cat(labels))
    setup = WorkerSetup(method, whole, Postprocessor(config.privacy, config.compression, method.shares), config.aggregation)
    with EmbeddedEngine(setup, EngineConfig(workers=0, device="cpu")) as engine:
        loop = RoundLoop(method, engine, ClientStateStore(), config.loop, 0)
        return loop.run(loop.initial_state()).server.flatten()


@pytest.mark.parametrize("name", METHODS)
def test_methods_learn_the_same_from_labels_that_stay_at_the_clients(clients: Clients, name: str) -> None:
    tree = merge(LABELLED, {"method": {"name": name, **METHODS[name]}, "federation": {"quorum": 1.0}})
    run = Run(clients, tree, secure=True, num_classes=3, name=f"same-{name}")
    start = run.federation.initial_state().server.flatten()
    found = run.go().server.flatten()
    expected = embedded(clients, tree)
    assert run.failures == []
    moved = max(
        float((found[key] - start[key]).abs().max()) for key in found if key in start and found[key].is_floating_point()
    )
    apart = max(float((found[key] - expected[key]).abs().max()) for key in found if found[key].is_floating_point())
    assert moved > 1e-3
    assert apart < 2e-3, "masked sums have steps"
    assert apart < 0.5 * moved


@attack("A28", "Looks for a rare class in what is learnt from labels", "classes with few samples are unlabelled")
def test_labels_are_numbered_by_the_recipe_and_rare_ones_are_unlabelled(clients: Clients) -> None:
    directory = clients.directories[0]
    dataset = load_client_data(directory, DataConfig(channels=1))
    assert dataset.labels is not None
    names = [dataset.class_names[number] for number in dataset.labels.tolist()]
    classes = [NARROW, WIDE, RARE]
    seen = visible_labels(dataset, classes, directory.config).tolist()
    for name, label in zip(names, seen, strict=True):
        assert label == (classes.index(name) if name in (NARROW, WIDE) else -1), "three samples of a kind are too few"
    assert {names[row] for row in range(len(names)) if seen[row] == -1} == {RARE, "other"}
    strict = directory.config.model_copy(update={"bounds": directory.config.bounds.model_copy(update={"min_drawn": 1000})})
    assert set(visible_labels(dataset, classes, strict).tolist()) == {-1}
    assert set(visible_labels(replace(dataset, labels=None), classes, directory.config).tolist()) == {-1}
    lenient = directory.config.model_copy(update={"labels": directory.config.labels.model_copy(update={"min_per_class": 3})})
    assert visible_labels(dataset, classes, lenient).tolist().count(2) == 3


def test_a_class_that_the_owner_does_not_list_is_unlabelled(clients: Clients) -> None:
    config = clients.directories[0].config
    only = config.model_copy(update={"labels": config.labels.model_copy(update={"classes": (WIDE,)})})
    dataset = load_client_data(clients.directories[0], DataConfig(channels=1))
    assert set(visible_labels(dataset, [NARROW, WIDE], only).tolist()) == {-1, 1}


@pytest.mark.parametrize(
    ("own", "over", "num_classes", "words"),
    [
        ({"use": False}, {}, 3, r"policy:labels\.use: labels.use is false"),
        ({"classes": ["cat"]}, {}, 3, r"policy:labels\.classes: labels.classes lists none"),
        ({}, {"privacy": {"secure_aggregation": False}}, 3, r"policy:labels\.use: labels.use: updates leave under masks only"),
        ({}, {}, 50, "the run has 50 classes, and its recipe names 3"),
    ],
)
def test_labels_are_used_only_as_the_owner_says(
    tmp_path: Path, clients: Clients, own: Any, over: Any, num_classes: int, words: str
) -> None:
    from tests.deploy.test_policy import client_with

    client = client_with(clients, tmp_path, {"labels": own})
    run = Run(clients, merge(LABELLED, over), num_classes=num_classes)
    with pytest.raises(ClientError, match=words):
        client.answer(request(run))
    if num_classes == 3:
        with pytest.raises(UserError, match=words.split(":", maxsplit=2)[1]):
            client.describe(question(merge(LABELLED, over)))


def test_numbers_about_labels_do_not_leave(tmp_path: Path, clients: Clients) -> None:
    from tests.deploy.test_policy import client_with

    client = client_with(clients, tmp_path, {"allow": {"metrics": ["loss", "smallest_cluster"]}})
    told = client.describe(question(LABELLED))
    assert set(told) == {"client", "samples", "shape", "mean", "std", "version", "policy", "ledger"}
    text = (tmp_path / "audit.jsonl").read_text()
    assert not {word for word in (WIDE, NARROW, RARE, "accuracy") if word in text}


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"labels": {"classes": []}}, r"list the names of the classes in labels\.classes"),
        ({"labels": {"fraction": 0.1}}, r"labels\.fraction hides labels in a simulation, got 0\.1"),
        ({"privacy": {"secure_aggregation": False}}, r"set privacy\.secure_aggregation = true"),
    ],
)
def test_a_recipe_that_needs_labels_is_checked_before_clients_are_asked(over: Any, words: str) -> None:
    check_labels(resolve(LABELLED))
    with pytest.raises(UserError, match=words):
        check_labels(resolve(merge(LABELLED, over)))
